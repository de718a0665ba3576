"""Examples of each command, which its `--help` shows; a test holds each to the command's own parser."""

from collections.abc import Mapping, Sequence

__all__ = ["EXAMPLES"]

# command -> (words after it, their purpose)
EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "init": [
        ("", "six questions, then spec.yaml"),
        ("--model deepseek-r1 --gpu h800 --nodes 22x8 --slo 2000/50 -o chat.yaml", "without a question"),
    ],
    "explain": [("S501", "a rule"), ("decode.ep_size", "a field"), ("kubernetes", "a section")],
    "validate": [("spec.yaml", "one spec"), ("base.yaml -f prod.yaml", "under an overlay")],
    "schema": [("", "for an editor: tidemill schema > spec.schema.json")],
    "plan": [
        ("spec.yaml -o plan.json", "the plan as text, and in a file"),
        ("spec.yaml --previous plan.json", "near the plan that runs, and what the change does"),
        ("spec.yaml --unit chat-decode-0", "the nodes and ranks of one unit"),
    ],
    "diff": [
        ("plan.json spec.yaml", "from the plan that runs to an edited spec"),
        ("before.yaml after.yaml --format markdown", "for a pull request"),
    ],
    "experts": [
        ("loads.npy --gpus 144 --nodes 18 -o map.json", "a map for measured loads"),
        ("--from http://10.0.0.7:9400/metrics -o loads.json", "the loads that a rank has recorded"),
    ],
    "render": [
        ("spec.yaml -o deploy", "a new folder, or near the plan that it keeps"),
        ("plan.json -o deploy", "a plan as it is"),
    ],
    "up": [
        ("", "the bundled demo"),
        ("spec.yaml --detach", "back when the endpoint answers"),
        ("spec.yaml --day 5min", "the day of its schedule, in five minutes"),
    ],
    "down": [("", "what was started in this folder"), ("chat", "a deployment by its name")],
    "status": [("--watch", "again at every change"), ("plan.json --context prod", "in a cluster")],
    "key": [("--name team-a", "a key, and its entry in the file of keys")],
    "doctor": [("spec.yaml --context prod", "what stands in the plan's way"), ("plan.json --context prod --probe", "")],
    "controller": [("chat/deepseek-r1 --dry-run --once", "what it would do now"), ("--definition", "its CRD")],
    "hold": [("chat/deepseek-r1 --until 2h", "no unit starts or stops for two hours")],
    "force": [("chat/deepseek-r1 --state 12:00 --until 2026-12-01T06:00:00Z", "the units of noon until then")],
    "simulate": [
        ("spec.yaml", "a day over its plan"),
        ("spec.yaml --fail node-3@14:00 --set decode.units=3", "a lost node, and another column"),
    ],
    "gitops init": [("spec.yaml deploy --github --argocd --repository ssh://git@git.example/team/chat.git", "")],
    "gitops check": [("spec.yaml deploy --base ../main --fail-on outage,stale", "what a pull request does")],
    "gitops comment": [("report.json --environment prod", "")],
    "gitops propose": [("spec.yaml deploy --loads loads.npy", "a pull request with new expert maps")],
}
