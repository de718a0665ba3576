"""A day of DeepSeek's V3/R1 service, as it was published: 27 February 2025 12:00 to 28 February 12:00, in UTC+8.

Source: github.com/deepseek-ai/open-infra-index, open source week, day 6. The nodes are read off its step chart, and
their mean is exactly the published one. V3 and R1 share these nodes.
"""

from collections.abc import Mapping

SOURCE = "github.com/deepseek-ai/open-infra-index, open source week, day 6"
TOKENS = 608e9, 168e9  # of input, of output
CLOCK = "UTC+8"

# from when on -> nodes in use
NODES = (
    ("00:00", 218),
    ("01:15", 188),
    ("02:00", 158),
    ("02:45", 128),
    ("03:00", 98),
    ("03:30", 68),
    ("06:30", 98),
    ("07:00", 128),
    ("07:30", 188),
    ("08:00", 218),
    ("08:30", 278),
)

# (section, name) of a plan's row -> what was published of it
PUBLISHED: Mapping[tuple[str, str], str] = {
    ("schedule", "peak_nodes"): "278",
    ("schedule", "mean_nodes_taken"): "226.75",
    ("performance.prefill", "tokens_per_s_per_node_with_hits"): "about 73,700",
    ("performance.decode", "tokens_per_s_per_node"): "about 14,800",
    ("performance.decode", "tokens_per_s_per_user"): "20 to 22",
    ("cost", "usd_per_day"): "$87,072",
    ("cost", "revenue_if_all_answered_usd_per_day"): "$562,027, called theoretical",
    ("cost", "markup"): "545% if all is answered, called cost profit margin",
}
