"""The gateway: OpenAI's HTTP in front, the ranks' TCP connections behind, text and tokens between.

Why it exists: clients speak text and one model name, ranks speak token ids and know only their unit. The gateway is
the one process that sees both, so it is also where requests are placed, limited and timed. It imports no torch.

A request's life, in the order of the files:
    1. edge/http1.py         reads the head of the HTTP call; edge/connections.py limits how long that may take
    2. core/app.py           takes the call and answers it; tenants/keys.py says whether this client may ask
    3. core/body.py          checks the body and refuses, by name, what this server does not do
    4. core/calls.py         turns the body into prompts of token ids (tokenizer.py) and sampling;
                             a chat passes conversation.py and the checkpoint's chat_template.py first
    5. tenants/admission.py  keeps the request in line until its turn has come and ranks have room
    6. core/generation.py    follows each prompt from Prefill to its last token, over the loss of a rank (resumption.py)
    7. ranks/registry.py     knows the ranks and their states; router.py chooses two of them by their load
    8. core/detokenizer.py   turns tokens into text and never breaks a character or a stop string
    9. core/answer_parts.py  finds the thoughts and the tool calls in a chat's text
    10. core/dialects.py     writes the text as OpenAI's JSON; edge/http_errors.py writes errors

/v1/responses is a chat in other words: responses.py, response_items.py. embeddings.py is the shorter life of a prompt
without tokens. tokenizing.py answers /tokenize, openapi.py describes the routes. schemas.py tries a caller's JSON
schema in a process of its own before a rank sees it.
serve.py binds the three ports and runs everything.

It does not cache answers, and it does not start ranks.
"""
