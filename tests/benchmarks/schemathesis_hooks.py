"""What schemathesis changes in the bodies that it makes up, for `tests/benchmarks/clients.py`.

It knows no model by name, so all its bodies would be refused for that; and it asks for the longest answers that there
are. The rest of a body stays as it is, wrong or not. It is loaded in schemathesis' own environment.
"""

import schemathesis

MODEL = "tidemill-demo"
MAX_TOKENS, MAX_CHOICES = 4, 2


@schemathesis.hook
def map_body(context, body):
    """Name the model, and ask for little."""
    if not isinstance(body, dict):
        return body
    changes = {"model": MODEL} if "model" in body else {}
    if "messages" in body or "prompt" in body:
        changes |= {name: limit for name, limit in limits(body).items() if is_over(body.get(name), limit)}
    return body | changes


def limits(body):
    """The fields that say how much is asked for."""
    return {"max_tokens": MAX_TOKENS, "n": MAX_CHOICES} if "model" in body else {}


def is_over(asked, limit):
    """True for nothing at all, too, which means as much as there is room for."""
    return asked is None or (isinstance(asked, int) and asked > limit)
