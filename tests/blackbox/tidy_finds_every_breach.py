"""`make check` fails when the source breaks a style rule: each rule is violated once here, and obeyed once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
import tidy

LIB = "crates/one/src/lib.rs"
# A crate to which every rule applies.
STRICT = "crates/amqp/src/lib.rs"

BREACHES = {
    "a type name twice in a crate": ({LIB: "pub struct Plan;\nmod x;\n", "crates/one/src/x.rs": "struct Plan;\n"}, "a second Plan in one crate"),
    "a public type name in two crates": ({LIB: "pub struct Plan;\n", "crates/two/src/lib.rs": "pub enum Plan {}\n"}, "a second public Plan"),
    "a word of our own in an identifier": ({LIB: "fn take_seat() {}\n"}, "'seat'"),
    "a word of our own in a type name": ({LIB: "struct FastLane;\n"}, "'lane'"),
    "a word of our own in a comment": ({LIB: "/// Ten octets.\n"}, "'octets'"),
    "one that is English in a sentence alone": ({LIB: "fn has_room() {}\n"}, "'room'"),
    "a sentence without a head": ({LIB: "/// Who waits is woken.\n"}, "without a head: Who waits is woken."),
    "one over two lines": ({LIB: "// It is full. What\n// comes later waits.\n"}, "without a head: What comes later waits."),
    "one in a page's script": ({"crates/one/src/page/a.js": "/** What waits. */\nlet a;\n"}, "without a head: What waits."),
    "a count without a number": ({LIB: "/// It takes so many bytes.\n"}, "'so many'"),
    "a file that is too long": ({LIB: "\n" * 800}, "801 lines"),
    "a comment that is too wide": ({LIB: f"// {'x' * 130}\n"}, "133 columns"),
    "a comment that repeats a name": ({STRICT: "/// The plan.\n#[derive(Debug)]\npub struct Plan;\n"}, "'The plan.'"),
    "a text as an error": ({STRICT: "fn a() -> Result<Vec<(u8, String)>, String> {}\n"}, "errors are types"),
    "one over several lines": ({STRICT: "fn a(\n) -> Result<\n    u8,\n    String,\n> {}\n"}, "errors are types"),
    "a public function without a user": ({STRICT: "pub const fn unused() {}\n", LIB: "// unused\n"}, "no other crate uses unused"),
    "a lock that no test sees": ({"crates/broker/src/lib.rs": "use parking_lot::Mutex;\n"}, "a lock that tests do not see"),
    "one of the standard library": ({"crates/store/src/a.rs": "use std::sync::{Arc, Mutex};\n"}, "a lock that tests do not see"),
    "a path that is gone": ({LIB: "", "ARCHITECTURE.md": "See `crates/one/src/gone.rs`.\n"}, "gone.rs does not exist"),
    "a function that is gone": ({LIB: "fn here() {}\n", "ARCHITECTURE.md": "See `one::gone`.\n"}, "there is no one::gone"),
    "a hop in another file": (
        {
            LIB: "fn here() {}\n",
            "crates/one/src/b.rs": "fn there() {}\n",
            "ARCHITECTURE.md": "## Code map\n| it | `one::here` | `one::there` | `crates/one/src/lib.rs` |\n",
        },
        "one::there is in none of the files of its row",
    ),
    "a row without the paths of its files": (
        {LIB: "fn here() {}\n", "ARCHITECTURE.md": "## Code map\n| it | `one::here` | `one::here` | `one::here` |\n"},
        "the paths of their files",
    ),
    "an invariant without a test": (
        {"crates/one/tests/a.rs": "//! S1.\n", "ARCHITECTURE.md": "## Invariants\n- S1. Yes.\n- P2. Also.\n"},
        "ARCHITECTURE.md: no head of a test names P2",
    ),
    "a test of an invariant that is not defined": (
        {LIB: "", "tests/a.py": '"""S1 and B4."""\n', "ARCHITECTURE.md": "## Invariants\n- S1. Yes.\n"},
        "tests/a.py:1: ARCHITECTURE.md defines no B4",
    ),
    "a sentence without a head in a document": ({"docs/a.md": "# A\n\nIt is full. Who waits is woken.\n"}, "docs/a.md:3: a sentence without a head"),
    "one in a cell": ({"docs/a.md": "| a | b |\n|---|---|\n| 1 | What waits. |\n"}, "docs/a.md:3: a sentence without a head"),
    "a count without a number in a document": ({LIB: "", "README.md": "It takes so many bytes.\n"}, "README.md:1: 'so many'"),
}

SOUND = {
    LIB: """\
//! What is a plan? A list of steps.
pub struct Plan { bytes: u8 }
impl Iterator for Plan {
    type Item = ();
}
// application/octet-stream; there is room for it.
fn replan(ip: Ipv4Addr) { ip.octets(); log("a seat"); } // no room
#[cfg(test)]
mod tests {
    struct Plan;
}
#[cfg(test)]
mod model;
""",
    "crates/one/src/model.rs": "struct Plan;\n",
    STRICT: """\
/// See [`Plan`].
pub type OtherPlan = Result<HashMap<String, String>, std::io::Error>;
/// A plan.
pub(crate) fn plan(done: impl Fn(u8) -> String) -> Result<String, PlanError> {}
/// Executes the whole plan.
pub fn execute() {}
pub fn measure() {}
#[cfg(test)]
mod tests {
    fn plan() -> Result<(), String> {}
}
""",
    "crates/amqp/benches/plan.rs": "fn main() { measure() }\n",
    "crates/two/src/lib.rs": "use parking_lot::Mutex;\nfn all() { execute() }\n",
    "crates/server/src/alarms.rs": "use parking_lot::Mutex;\n",
    "crates/broker/src/lib.rs": "use std::sync::{Arc, MutexGuard};\nuse sync::Mutex;\n",
    "ARCHITECTURE.md": """\
`crates/one/src/lib.rs` has `one::Plan` and `one::replan()`.

## Code map

| behaviour | entry | the hops behind it | files |
|---|---|---|---|
| it | `one::replan` | `one::Plan` | `crates/one/src/lib.rs` |

## Invariants

- S1. It holds.
""",
    "tests/blackbox/it.py": '"""S1: it holds."""\n',
    "docs/a.md": "# What is it?\n\nWho may log in? Users may.\n",
}


def breaches(directory, files):
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(tidy.check(directory))


@pytest.mark.parametrize("rule", BREACHES)
def test_a_broken_rule_is_reported_with_its_place(tmp_path, rule):
    files, text = BREACHES[rule]
    found = breaches(tmp_path, files)
    assert len(found) == 1 and text in found[0] and ":" in found[0], found


def test_sources_that_follow_the_rules_pass(tmp_path):
    assert breaches(tmp_path, SOUND) == []
