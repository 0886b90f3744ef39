"""A scripted model that keeps memories in order, by simple rules of its own."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

from support.extractor import extract
from support.scripted_model import Answer, Request

__all__ = ["memories_in", "tidy"]

MEMORY = re.compile(r"^(\d+)\. \([^)]*\) (.*)$")


def memories_in(prompt: str) -> dict[int, str]:
    """The memories of a prompt, by number."""
    lines = prompt.partition("\nMemories:\n")[2].splitlines()
    return {int(found[1]): found[2] for line in lines if (found := MEMORY.match(line))}


def organized(memories: dict[int, str]) -> dict[str, Any]:
    """Nobody lives in two places; to love is to like; whoever swam on three days swims often."""
    same = [
        [one, other]
        for one, other in combinations(memories, 2)
        if memories[one].replace("loves", "likes") == memories[other].replace("loves", "likes")
    ]
    homes = {number: text for number, text in memories.items() if " lives in " in text}
    contradictions = [
        [one, other]
        for one, other in combinations(homes, 2)
        if homes[one] != homes[other] and homes[one].split()[0] == homes[other].split()[0]
    ]
    swims = [number for number, text in memories.items() if " swam " in text]
    patterns = [{"text": "Ann swims often", "evidence": swims}] if len(swims) >= 3 else []
    return {"same": same, "contradictions": contradictions, "patterns": patterns}


def tidy(request: Request) -> Answer:
    """Answer what the handlers of upkeep and `mem_read` ask."""
    memories = memories_in(request.prompt)
    if "`contradictions`" in request.prompt:
        return Answer(text=json.dumps(organized(memories)))
    if "answer null as the text" in request.prompt:
        texts = list(dict.fromkeys(text.rpartition(": ")[2] for text in memories.values()))
        return Answer(text=json.dumps({"text": "; ".join(texts)}))
    if "A coding agent has used a tool" in request.prompt:
        tool = request.prompt.partition("\nTool: ")[2].splitlines()[0]
        seen = {"title": f"The model saw {tool}", "narrative": "It was so.", "facts": [], "concepts": []}
        return Answer(text=json.dumps(seen))
    if "one session of a coding agent" in request.prompt:
        lines = request.prompt.partition("\nSession:\n")[2].splitlines()
        parts = dict.fromkeys(("request", "investigated", "completed", "next_steps"), "")
        return Answer(text=json.dumps({**parts, "learned": f"the model read {len(lines)} lines"}))
    return extract(request)
