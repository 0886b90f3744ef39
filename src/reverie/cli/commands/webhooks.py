"""The commands of `reverie webhooks`: programs that are told of events by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.app import opened
from reverie.cli.options import Json, Text, Texts, Url
from reverie.cli.output import moment, note, print_json, print_table, say, show_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.webhooks.records import Webhook

__all__ = ["commands"]

commands = typer.Typer(help="Tell programs outside of events by signed HTTP requests.", no_args_is_help=True)

WebhookId = Annotated[str, typer.Argument(help="The id of the webhook: `reverie webhooks list` shows it.")]


@commands.command()
def create(
    address: Annotated[str, typer.Argument(help="Where to send events: https://host/path.")],
    *,
    event: Annotated[
        list[str], typer.Option("--event", "-e", help="An event, such as memory.added. Repeatable.")
    ],
    name: Annotated[str, typer.Option(help="What you call the webhook.")] = "",
    user: Annotated[Texts, typer.Option("--user", "-u", help="Only of this user. Repeatable.")] = None,
    label: Annotated[Texts, typer.Option(help="Only from messages of this label. Repeatable.")] = None,
    include_content: Annotated[
        bool, typer.Option("--include-content", help="Send texts and errors, too, not only ids.")
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Make a webhook. The secret of its signatures is shown now, and never again.

    Example: reverie webhooks create https://example.org/reverie --event memory.added --event task.failed
    """
    with opened(url, makes=True) as scheduler:
        webhook, secret = scheduler.webhooks.create(
            address, event, name=name, users=user, labels=label, include_content=include_content
        )
        if json:
            from msgspec.structs import asdict

            print_json({**asdict(webhook), "secret": secret})
            return
        say(f"id      {webhook.id}")
        say(f"secret  {secret}")
        note("keep the secret: it is not shown again")


@commands.command("list")
def list_webhooks(url: Url = None, json: Json = False) -> None:
    """List the webhooks.

    Example: reverie webhooks list
    """
    with opened(url) as scheduler:
        found = scheduler.webhooks.page(limit=1000)
        if json:
            print_json(found)
        elif found:
            print_table(
                ["id", "name", "address", "events", "users", "labels", "content", "since"],
                [_row(webhook) for webhook in found],
            )
        else:
            note("there are no webhooks")


@commands.command()
def delete(webhook_id: WebhookId, url: Url = None, json: Json = False) -> None:
    """Delete a webhook. What waits for it is not sent any more.

    Example: reverie webhooks delete wh_0123456789abcdef
    """
    with opened(url) as scheduler:
        scheduler.webhooks.delete(webhook_id)
        if json:
            print_json({"id": webhook_id})
        else:
            say(f"deleted {webhook_id}")


@commands.command("test")
def send_test(webhook_id: WebhookId, url: Url = None, json: Json = False) -> None:
    """Send a webhook.test event now, once. Exit code 1 if the receiver has not accepted it.

    Example: reverie webhooks test wh_0123456789abcdef
    """
    with opened(url) as scheduler:
        posted = scheduler.webhooks.test(webhook_id)
        if json:
            print_json({"id": webhook_id, "delivered": posted.problem is None, **posted._asdict()})
        elif posted.problem is None:
            say(f"delivered: the receiver has answered {posted.status}")
        else:
            show_error(f"not delivered: {posted.problem}")
        if posted.problem is not None:
            raise typer.Exit(1)


def _row(webhook: Webhook) -> tuple[object, ...]:
    return (
        webhook.id,
        webhook.name,
        webhook.url,
        ", ".join(webhook.events),
        _names(webhook.users),
        _names(webhook.labels),
        "yes" if webhook.include_content else "ids only",
        moment(webhook.created_at),
    )


def _names(names: Sequence[str] | None) -> Text:
    return "all" if names is None else ", ".join(names)
