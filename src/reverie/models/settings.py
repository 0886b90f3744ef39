"""The language model: which one, how it is called, and how much it may cost."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from reverie.configuration.section import Section

__all__ = ["LlmSettings", "Price"]

Preset = Literal["none", "openai", "ollama", "anthropic", "custom"]


class Price(Section):
    """What a million tokens of a model cost."""

    input: float = Field(0, ge=0, description="money for a million tokens of prompts")
    output: float = Field(0, ge=0, description="money for a million tokens of answers")


class LlmSettings(Section):
    """The language model. With the preset none, no call is ever made."""

    preset: Preset = Field(
        "none",
        description="none, openai, ollama (a server on this machine), anthropic (its endpoint that speaks "
        "the protocol of OpenAI), or custom (set url and model)",
    )
    url: str | None = Field(None, description="base URL of the endpoint; default: that of the preset")
    model: str | None = Field(None, min_length=1, description="name of the model; default: by the preset")
    api_key: str | None = Field(
        None, description="the key; default: OPENAI_API_KEY or ANTHROPIC_API_KEY, by the preset"
    )
    credential: str = Field(
        "llm", min_length=1, description="name of the key in pauses and alerts, never the key itself"
    )
    timeout_s: float = Field(60, gt=0, description="seconds that one request may take")
    tries: int = Field(
        3, ge=1, le=10, description="tries of one call when the connection fails or the time is over"
    )
    temperature: float | None = Field(
        0, ge=0, le=2, description="temperature of the answers; null: the model's own"
    )
    window_tokens: int = Field(
        8192,
        ge=512,
        description="tokens that a prompt and its answer may have together; longer texts are split",
    )
    max_output_tokens: int = Field(2048, ge=16, description="tokens that an answer may have")
    max_concurrency: int = Field(
        50, ge=1, description="calls at once of all workers together while no rate limit was met"
    )
    limited_concurrency: int = Field(
        10, ge=1, description="calls at once after the first rate limit; it grows again while calls succeed"
    )
    quiet_s: float = Field(
        60, gt=0, description="seconds without a rate limit after which the limit of calls doubles"
    )
    tokens_per_day: int | None = Field(
        500_000,
        ge=0,
        description="tokens that a tenant may use on a day (UTC); then its model work waits for the next day",
    )
    money_per_day: float | None = Field(
        None, ge=0, description="money that a tenant may cost on a day (UTC), by prices; default: no limit"
    )
    upkeep_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of tokens_per_day and money_per_day that upkeep (mem_organize, "
        "memory_compression) may use; then upkeep waits for the next day, and the rest is left to other work",
    )
    prices: dict[str, Price] = Field({}, description="name of a model → what its tokens cost")

    @model_validator(mode="after")
    def check_preset(self) -> LlmSettings:
        """Refuse an endpoint that is not named, answers longer than the window, and money without a price."""
        if self.preset == "custom" and not (self.url and self.model):
            raise ValueError("preset = custom needs url and model")
        if self.max_output_tokens >= self.window_tokens:
            raise ValueError(
                f"max_output_tokens = {self.max_output_tokens} must be less than window_tokens = "
                f"{self.window_tokens}: the prompt has to fit, too"
            )
        if self.preset != "none" and self.money_per_day is not None:
            from reverie.models.openai_chat import model_name  # noqa: PLC0415  only then

            if model_name(self) not in self.prices:
                raise ValueError(
                    f"money_per_day = {self.money_per_day:g} has no effect while prices has no entry for "
                    f"the model {model_name(self)!r}: set its price, or no limit of money"
                )
        return self
