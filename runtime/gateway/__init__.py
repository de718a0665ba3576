"""The gateway: OpenAI's HTTP in front, the ranks' TCP connections behind, text and tokens between.

Why it exists: clients speak text and one model name, ranks speak token ids and know only their unit. The gateway is
the one process that sees both, so it is also where requests are placed, limited and timed. It imports no torch.

A request's life, in the order of the files:
    1. app.py          takes the HTTP call, answers it, notices when its client leaves
                       (keys.py says whether its client may ask, and how much)
    2. body.py         holds the body against what this server can do, refusing the rest by name
    3. calls.py        turns the body into prompts of token ids and sampling (with tokenizer.py); a chat's through
                       conversation.py and the checkpoint's chat_template.py; schemas.py tries the JSON
                       schema of its answer, in the process that schema_trial.py is
    4. generation.py   follows each prompt from Prefill to its last token
    5. registry.py     knows the ranks and their state (rank_connection.py is one of them), router.py chooses two by
                       what they have to do (rank_load.py), which ledger.py counts; answer_lengths.py guesses what is
                       still to come
    6. detokenizer.py  turns tokens into text that never breaks a character or a stop string (logprobs.py goes with it)
    7. answer_parts.py finds thoughts and calls of tools in a chat's text
    8. dialects.py     shapes the text as OpenAI's JSON; http_errors.py does so for what went wrong
responses.py makes a chat of a call of /v1/responses, and response_items.py shapes its answer.
embeddings.py is the shorter life of a prompt whose embedding is wanted. tokenizing.py answers for token ids, openapi.py
describes the routes to programs. http1.py refuses what is no HTTP, input_turns.py takes clients' input in a little at a
time, and connections.py bounds how many clients there are and how long one may keep a connection waiting.
serve.py binds the three ports and runs it all. metrics.py measures (token_tally.py counts what comes with every
token, phase_loads.py sums up what units have to do), request_log.py says what became of each call, tracing.py does so
for OpenTelemetry, and pace.py guesses when there will be room. client.py is the client's side of a call: a body of
bounded size, and noticing that the client left.

It does not queue requests, cache, or move a request off a lost rank.
"""
