"""The page of messages of what runs, asks or deploys."""

import re
from pathlib import Path

import stacks
from tests.stacks.messages import BROUGHT_ABOUT, LOCAL_MESSAGES, local_messages_page

RULE = re.compile(r"\"(R\d{3}) ")
STACKS = Path(stacks.__file__).parent


def test_the_page_of_messages_is_up_to_date(tmp_path):
    """Whoever rewords a message reads it among all others: `python -m tests.docs` writes the page again."""
    assert LOCAL_MESSAGES.read_text() == local_messages_page(tmp_path), "write it again with python -m tests.docs"


def test_every_rule_is_on_the_page():
    """A rule that the code can say is brought about once, and no other is."""
    said = {rule for path in STACKS.rglob("*.py") for rule in RULE.findall(path.read_text())}

    assert said == set(BROUGHT_ABOUT)
