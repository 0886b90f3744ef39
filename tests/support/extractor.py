"""A scripted model that extracts facts from the prompt of `mem_read`, by simple rules of its own.

It takes every feedback for a correction.
"""

from __future__ import annotations

import json
import re
from typing import Any

from support.scripted_model import Answer, Request

__all__ = ["extract", "facts_of", "known_in", "preferences_of", "turns_in"]

TURN = re.compile(r"^(\d+)\. ([^:(]+?)(?: \([^)]*\))?: (.*)$")


def turns_in(prompt: str) -> list[tuple[int, str, str]]:
    """The turns of a prompt: number, speaker, text."""
    lines = prompt.partition("\nTurns:\n")[2].splitlines()
    return [(int(found[1]), found[2], found[3]) for line in lines if (found := TURN.match(line))]


def known_in(prompt: str, what: str = "facts") -> dict[int, str]:
    """The known facts of a prompt, by number."""
    part = prompt.partition(f"\nKnown {what}:\n")[2].partition("\n\nTurns:\n")[0]
    return {
        int(line.partition(". ")[0]): line.partition(". ")[2] for line in part.splitlines() if ". " in line
    }


def facts_of(prompt: str) -> list[dict[str, Any]]:
    """A fact for each turn that is no small talk; "I moved to X" ends where the speaker lived before."""
    known = known_in(prompt)
    facts = []
    for number, speaker, text in turns_in(prompt):
        if text.startswith("Hello"):
            continue
        fact: dict[str, Any] = {"text": f"{speaker} said: {text}", "kind": "fact", "turns": [number]}
        if moved := re.match(r"I moved to (\w+)", text):
            fact["text"] = f"{speaker} lives in {moved[1]}"
            fact["entities"] = [{"name": moved[1]}]
            fact["ends"] = [
                place
                for place, old in known.items()
                if old.startswith(f"{speaker} lives in ") and old != fact["text"]
            ]
            if not fact["ends"]:
                del fact["ends"]
        if text.startswith("I like"):
            fact |= {"text": f"{speaker} likes{text[6:]}", "kind": "preference"}
        facts.append(fact)
    return facts


def preferences_of(prompt: str) -> list[dict[str, Any]]:
    """A preference for each "I (don't) like X"; it replaces the contrary of the same speaker."""
    known = known_in(prompt, "preferences")
    found = []
    for number, speaker, text in turns_in(prompt):
        if liked := re.match(r"I (don't )?like (.*)", text):
            likes = [f"{speaker} likes {liked[2]}", f"{speaker} does not like {liked[2]}"]
            said, contrary = likes[::-1] if liked[1] else likes
            one = {"text": said, "explicit": True, "confidence": 0.8, "turns": [number]}
            if replaces := [place for place, old in known.items() if old == contrary]:
                one["replaces"] = replaces
            found.append(one)
    return found


def extract(request: Request) -> Answer:
    """Answer a request with facts, or with what else its prompt asks for."""
    if "\nFeedback:\n" in request.prompt:
        return Answer(text=json.dumps({"verdict": "correction", "memories": [1], "text": None}))
    if "\nKnown preferences:\n" in request.prompt:
        return Answer(text=json.dumps({"preferences": preferences_of(request.prompt)}))
    if "further queries" in request.prompt:
        return Answer(text=json.dumps({"queries": ["Lisbon"]}))
    if "\nMemories:\n" in request.prompt:  # the last is the best
        shown = request.prompt.partition("\nMemories:\n")[2].strip().count("\n") + 1
        return Answer(text=json.dumps({"order": list(range(shown, 0, -1))}))
    return Answer(text=json.dumps({"facts": facts_of(request.prompt)}))
