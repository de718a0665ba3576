"""What a value of the wrong type or form was probably meant to be: `"144"`, `1_000`, `32K`, `8:30`, `yes`.

For the fix of a message only: a spec in which one of these stands is wrong, and is never read as if it were right.
"""

import re
from fractions import Fraction
from typing import Any

from planner.facts.engines import ENGINES

__all__ = [
    "currency",
    "day",
    "engine_and_version",
    "fraction",
    "image",
    "numeral",
    "of_a_hundred",
    "of_seconds",
    "pairs",
    "thousandths",
    "time_of_day",
    "toleration",
    "tolerations",
    "truth",
    "variables",
    "whole_number",
    "windows",
]

CURRENCIES = {"€": "EUR", "euro": "EUR", "euros": "EUR", "£": "GBP", "us$": "USD", "yuan": "CNY", "rmb": "CNY"}
LEAST_OF_A_HUNDRED = 2  # assumed: less is a share that is too large, and not a percentage
MAX_DIGITS = 4000  # of which Python makes a number without complaint; more of them say no more: it is too large
WHOLE = re.compile(r"(?P<digits>[-+]?(?:[0-9]{1,3}(?:[_, ][0-9]{3})+|[0-9]+))(?:\.0+)?(?P<unit>k|m|K|M|Ki|Mi)?")
PART = re.compile(r"(?P<number>[0-9]{1,9}\.[0-9]{1,9})(?P<unit>k|m|K|M|Ki|Mi)")  # 0.5k
FRACTION = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
THOUSANDTHS = re.compile(r"([0-9]{1,18})m")
TIME = re.compile(r"(?P<hour>[01]?[0-9]|2[0-4])(?::(?P<minute>[0-5][0-9])(?::[0-5][0-9])?)?")
HALF_DAY = re.compile(r"(?P<hour>0?[1-9]|1[0-2])(?::(?P<minute>[0-5][0-9]))? ?(?P<half>[ap])\.?m\.?", re.IGNORECASE)
VERSIONED = re.compile(
    r"(?:\S*/)?(?P<name>[a-z]+)(?:-openai)?[:=@ -]+v?(?P<version>[0-9]+\.[0-9][\w.+-]*)", re.IGNORECASE
)

# Source: github.com/vllm-project/vllm vllm/engine/arg_utils.py, human_readable_int: 1k is 1,000 and 1K is 1,024.
UNITS = {None: 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20, "Ki": 2**10, "Mi": 2**20}
IMAGE_PARTS = ("registry", "repository", "name", "tag", "digest")  # as Helm charts have them
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TOLERATION_KEYS = ("key", "operator", "value", "effect", "seconds", "tolerationSeconds")
TRUTHS = {"yes": True, "y": True, "on": True, "true": True, "1": True}
FALSEHOODS = {"no": False, "n": False, "off": False, "false": False, "0": False}


def whole_number(value: Any) -> int | None:
    """`"144"`, `144.0`, `1_000`, `1,000`, `32K`, `0.5k`; None for anything else."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    match = WHOLE.fullmatch(value) if isinstance(value, str) else None
    if part := PART.fullmatch(value) if isinstance(value, str) else None:
        number = Fraction(part["number"]) * UNITS[part["unit"]]
        return int(number) if number.denominator == 1 else None
    return int(re.sub("[_, ]", "", match["digits"])[:MAX_DIGITS]) * UNITS[match["unit"]] if match else None


def fraction(value: Any) -> float | None:
    """`"1.01"`."""
    return float(value) if isinstance(value, str) and FRACTION.fullmatch(value) else None


def of_a_hundred(value: float, most: float) -> float | None:
    """`56.3`, as the share 0.563 of which there is at most 1; None for what is no percentage of that."""
    if most > 1 or not LEAST_OF_A_HUNDRED <= value <= 100:
        return None
    share = round(value / 100, 12)
    return share if share <= most else None


def engine_and_version(value: Any) -> tuple[str, str] | None:
    """Return the name and version that `sglang:0.5.23`, or an image, says; None where it names no engine with both."""
    match = VERSIONED.fullmatch(value) if isinstance(value, str) else None
    name = match["name"].casefold() if match else None
    known = next((each for each, facts in ENGINES.items() if each == name and facts.versions), None)
    return (known, match["version"]) if match and known else None


def of_seconds(value: float, least: float) -> float | None:
    """`0.05`, as the 50 milliseconds that so many seconds are; None where these are less than `least`, too."""
    number = round(value * 1000, 9)
    return None if number < least else int(number) if number == int(number) else number


def thousandths(value: Any) -> float | None:
    """`500m`: Kubernetes' way to write half a CPU."""
    match = THOUSANDTHS.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) / 1000 if match else None


def truth(value: Any) -> bool | None:
    """`yes`, `"true"`, `off`, `1`: what YAML 1.1, a shell or a quote makes of true and false."""
    return None if isinstance(value, bool) else (TRUTHS | FALSEHOODS).get(str(value).casefold())


def numeral(value: Any) -> str | None:
    """`7`, as the text that a name is."""
    return str(value) if type(value) is int else None


def pairs(value: Any) -> dict[str, str] | None:
    """A list of `pool=inference` or `pool: inference`, or `pool=inference,zone=a` as kubectl takes it, as a mapping."""
    items = value.split(",") if isinstance(value, str) else value
    found = [_pair(each) for each in items] if isinstance(items, list) and items else [None]
    named = dict(each for each in found if each is not None)
    return named if len(named) == len(found) else None


def _pair(written: Any) -> tuple[str, str] | None:
    if isinstance(written, dict) and len(written) == 1:
        ((key, text),) = written.items()
        return (key, text) if isinstance(text, str) else None
    key, sign, text = written.partition("=") if isinstance(written, str) else ("", "", "")
    return (key.strip(), text.strip()) if sign and key.strip() else None


def variables(value: Any) -> dict[str, Any] | None:
    """Kubernetes' list of `{name, value}` and of secrets' keys, or a shell's of `NAME=value`, as a mapping.

    None where it says anything else.
    """
    if (shell := pairs(value)) is not None:
        return shell
    found = [_variable(each) for each in value] if isinstance(value, list) else [None]
    named = dict(each for each in found if each is not None)
    return named if len(named) == len(found) else None


def _variable(written: Any) -> tuple[str, Any] | None:
    match written:
        case {"name": str(name), "value": str(text), **rest} if not rest:
            return name, text
        case {"name": str(name), "valueFrom": {"secretKeyRef": {"name": str(secret), "key": str(key)}}}:
            return name, {"secret": secret, "key": key}
    return None


def time_of_day(value: Any) -> str | None:
    """Return `8:30`, `8`, `08:30:00`, `24:00` or `9am` as HH:MM; None for anything else."""
    if half := HALF_DAY.fullmatch(str(value)):
        hour = int(half["hour"]) % 12 + (12 if half["half"] in "pP" else 0)
        return f"{hour:02}:{half['minute'] or '00'}"
    match = None if isinstance(value, bool) else TIME.fullmatch(str(value))
    return match and f"{int(match['hour']) % 24:02}:{match['minute'] or '00'}"


def currency(value: Any) -> str | None:
    """Return the letters of a currency that is written in others, as `eur`, or by its sign; None for anything else."""
    plain = value.strip().casefold() if isinstance(value, str) else ""
    return CURRENCIES.get(plain) or (plain.upper() if re.fullmatch("[a-z]{3}", plain) else None)


def image(value: Any) -> str | None:
    """Return `{repository, tag}`, as charts write an image, as one text; None for anything else."""
    if not isinstance(value, dict) or not value.keys() <= {*IMAGE_PARTS, "pullPolicy"}:
        return None
    parts = {key: str(each) for key in IMAGE_PARTS if isinstance(each := value.get(key), str | int | float) and each}
    named = "/".join(parts[key] for key in ("registry", "repository", "name") if key in parts)
    if not named or not {"tag", "digest"} & parts.keys():
        return None
    return named + (f":{parts['tag']}" if "tag" in parts else "") + (f"@{parts['digest']}" if "digest" in parts else "")


def day(value: Any) -> dict[str, Any] | None:
    """Windows alone, in a list or by their times, as the schedule that they are; None for anything else."""
    is_list = isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
    found = value if is_list else windows(value)
    return {"windows": found} if found else None


def windows(value: Any) -> list[dict[str, Any]] | None:
    """Windows by the time at which each starts, as a list; None where a key is no time."""
    if not isinstance(value, dict) or not value:
        return None
    times = {time: window for key, window in value.items() if (time := time_of_day(key)) and isinstance(window, dict)}
    return [{"at": time} | window for time, window in times.items()] if len(times) == len(value) else None


def tolerations(value: Any) -> list[dict[str, str]] | None:
    """Taints' keys with an operator, an effect or a value each, as a list; None where it says anything else."""
    if not isinstance(value, dict) or not value:
        return None
    found = [toleration(key, each) for key, each in value.items()]
    named = [each for each in found if each is not None]
    return named if len(named) == len(found) else None


def toleration(key: Any, value: Any) -> dict[str, str] | None:
    """`nvidia.com/gpu: Exists`, `gpu: NoSchedule` or `team: chat`, as a toleration of that taint alone."""
    if not isinstance(key, str) or not isinstance(value, str) or not value or key in TOLERATION_KEYS:
        return None
    if value == "Exists":
        return {"key": key, "operator": "Exists"}
    if value in TAINT_EFFECTS:
        return {"key": key, "operator": "Exists", "effect": value}
    return {"key": key, "value": value}
