"""Checks the rules of CONTRIBUTING.md that the compiler cannot: unique type names, the field's words, sentences with a subject,
comments that say something, errors that are types, no `pub` without a user, file lengths, comment widths, short sentences in operators'
documents, an ARCHITECTURE.md that names what exists, and a test for each of its invariants. Prints each breach with its place; the exit
code is 1 if there is one.

    python3 tests/tidy.py [DIRECTORY]
"""

import collections
import re
import sys
from pathlib import Path

from prose import CODE, long_sentences, paragraphs as text_paragraphs

# A longer file has more than one concern.
MAX_LINES = 800
# The maximum columns of a comment line; rustfmt takes care of code.
MAX_COLUMNS = 128

# A doc comment of this many words or fewer only repeats the item's name, unless it refers to something else.
TERSE = 3

# Private words, and what a RabbitMQ or Rust engineer says instead. Matched in identifiers and in comments.
BANNED = {
    "octet": "byte",
    "octets": "bytes",
    "seat": "authorised session, or budget share",
    "lane": "stream",
    "lanes": "streams",
    "leg": "upstream link",
    "stake": "usage",
    "doorkeeper": "auth gate",
    "papers": "man pages",
    "bury": "dead-letter",
    "hungry": "needs to load",
    "owed": "pending",
    "owing": "pending",
}
# Private words that are English in a sentence, so they are matched in identifiers only.
BANNED_NAMES = {
    "room": "capacity, space or window",
    "shelf": "queue storage",
    "shelves": "stored queues",
    "lasting": "persistent, durable or permanent",
    "dice": "random",
    "newcomer": "accepted connection",
    "suspicions": "refused exchanges",
    "dismissal": "close reason",
}
# Wire formats and foreign interfaces keep their own words.
EXCEPTIONS = {
    "octet": re.compile(r"octet-stream|\"octet\""),
    "octets": re.compile(r"\.octets\(\)"),
}
HEADLESS = re.compile(r"(?:^|[.:;] )(?:What|Who|Whoever|Whose|Whatever)\b[^?]*?(?:\.|$)")
HEADLESS_PROSE = re.compile(r"(?:^|[.:;] )(?:\*\*)?(?:What|Who|Whoever|Whose|Whatever)\b[^?]*?(?:\.|$)")
SO_MANY = re.compile(r"\bso many\b", re.IGNORECASE)

TYPE = re.compile(r"^\s*(pub(?:\([^)]*\))?\s+)?(?:struct|enum|trait|union|type)\s+([A-Z]\w*)")
ASSOCIATED = re.compile(r"^\s+(?:pub(?:\([^)]*\))?\s+)?type\s")
TEST_MODULE = re.compile(
    r"#\[cfg\([^\]]*\b(?:test|loom)\b[^\]]*\]\s*(?:#\[path = \"(\w+)\.rs\"\]\s*)?(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+);"
)
INLINE_TESTS = re.compile(r"^#\[cfg\([^\]]*\btest\b[^\]]*\]\n(?:pub(?:\([^)]*\))?\s+)?mod \w+ \{\n.*?^\}", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"^\s*//[/!]?\s?(.*)$")
SCRIPT_COMMENT = re.compile(r"^(\s*)(?:/\*\*?|\*(?!/))[ \t]?(.*?)(?:\s*\*/)?$", re.MULTILINE)
DOC = re.compile(r"^\s*///\s?(.*)$")
ATTRIBUTE = re.compile(r"^\s*#\[")
PUBLIC = re.compile(r"^\s*pub\s")
# Without types: another crate may use one as the type of a value, without naming it.
PUBLIC_VALUE = re.compile(r"^\s*pub\s+(?:(?:async|const|unsafe)\s+)*(?:fn|const|static)\s+(?:mut\s+)?(\w+)")
STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"")
WORD = re.compile(r"[A-Za-z][a-z]*")
NAME = re.compile(r"[A-Za-z_]\w*")
# Operators' documents, beside the README and the how-tos.
SHORT_SENTENCES = (
    "authentication.md",
    "benchmarks.md",
    "installation.md",
    "migrating-from-rabbitmq.md",
    "migration.md",
    "monitoring.md",
    "mqtt-and-stomp.md",
    "operations.md",
    "pool.md",
    "troubleshooting.md",
    "upgrades.md",
)
# A path of the repository, or an item of a crate, as ARCHITECTURE.md writes them.
NAMED_PATH = re.compile(r"`((?:crates|tests|docs|packaging)/[\w./-]+)`")
NAMED_ITEM = re.compile(r"`([a-z_]+(?:::\w+)+)(?:\(\))?`")
# The section with a row for each behaviour, and the one that defines the invariants.
BEHAVIOURS = "Code map"
INVARIANTS = "Invariants"
INVARIANT = re.compile(r"\b[SPB]\d{1,2}\b")
DEFINED_INVARIANT = re.compile(r"^- ([SPB]\d{1,2})\. ", re.MULTILINE)
# The head of a test file: the comment or docstring above its code.
RUST_HEAD = re.compile(r"\A(?://!.*\n)+")
PYTHON_HEAD = re.compile(r'\A"""(.*?)"""', re.DOTALL)

# Neither the lock order check (crate sync) nor the test of the locks that a message takes
# (crates/server/src/amqp/simulation/locks.rs) sees plain parking_lot locks. In the crates on a message's path only these files
# may have one, because no message takes it unless the reason says so.
PLAIN_LOCK = re.compile(r"\bparking_lot\b|\b(?:std|tokio)::sync::(?:\{[^}]*)?\b(?:Mutex|RwLock|Condvar)\b")
MESSAGE_PATH = ("broker", "server", "store", "transport")
PLAIN_LOCKS = {
    "server/src/alarms.rs": "connections that an alarm blocks",
    "server/src/amqp/incomplete.rs": "a connection whose incomplete messages exceed 64 KiB, once for each time",
    "server/src/client.rs": "logins",
    "server/src/limits.rs": "connections, and reads where receive_rate is set",
    "server/src/lines.rs": "lines of the log and the access log",
    "server/src/migration.rs": "moves to another broker",
    "server/src/migration/progress.rs": "moves to another broker",
    "server/src/registry/bytes.rs": "lists for operators",
    "server/src/spool": "the spool, whose queues have locks of their own",
    "store/src/catalogue.rs": "changes of definitions",
    "store/src/disk/simulated/": "tests",
    "store/src/facade/brake.rs": "publishers that wait for room on the disk",
    "store/src/facade/mover_thread.rs": "retirement",
    "store/src/journal/spares.rs": "a segment of the journal, once for each",
    "store/src/journal/writer.rs": "reads of the journal's files, and a segment, once for each",
    "store/src/pages/files.rs": "paging",
    "store/src/pages/queue.rs": "paging",
    "transport/src/blocking.rs": "a round of the journal in a turn",
    "transport/src/inherited.rs": "the start",
    "transport/src/tls/client.rs": "TLS handshakes",
    "transport/src/tls/server.rs": "TLS handshakes",
}


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    breaches = list(check(root))
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


def check(root):
    files = {path: path.read_text() for path in sorted(root.glob("crates/*/**/*.rs")) if "target" not in path.parts}
    for path, text in files.items():
        place = path.relative_to(root)
        yield from lengths(place, text)
        yield from words(place, text)
        yield from sentences(place, text)
    for path in sorted(root.glob("crates/*/src/**/*.js")):
        # With comment markers as in Rust.
        yield from sentences(path.relative_to(root), SCRIPT_COMMENT.sub(r"\1// \2", path.read_text()))
    production = {path: text for path, text in production_of(root, files)}
    for path, text in production.items():
        place = path.relative_to(root)
        yield from terse_docs(place, text)
        yield from errors_of_text(place, text)
        yield from plain_locks(place, text)
    yield from unused_public(root, files, production)
    yield from homonyms(root, production)
    yield from names_of_architecture(root, files)
    yield from tests_of_invariants(root, files)
    for path in documents(root):
        yield from sentences_of_document(path.relative_to(root), path.read_text())
    for path in [root / "README.md", *(root / "docs" / name for name in SHORT_SENTENCES), *sorted(root.glob("docs/how-to/*.md"))]:
        if path.exists():
            yield from long_sentences(path.relative_to(root), path.read_text())


def lengths(place, text):
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        yield f"{place}: {len(lines)} lines; {MAX_LINES} are the most"
    for number, line in enumerate(lines, 1):
        comment = COMMENT.match(line)
        # A table row cannot be wrapped.
        if len(line) > MAX_COLUMNS and comment and not comment[1].startswith("|"):
            yield f"{place}:{number}: a comment of {len(line)} columns; {MAX_COLUMNS} are the most"


def words(place, text):
    for number, line in enumerate(text.split("\n"), 1):
        code = "" if COMMENT.match(line) else STRING.sub("", line)
        found = {word.lower() for word in WORD.findall(code or line)}
        names = {word.lower() for word in WORD.findall(code.split("//")[0])}
        for banned in sorted((found & BANNED.keys()) | (names & BANNED_NAMES.keys())):
            if banned not in EXCEPTIONS or not EXCEPTIONS[banned].search(line):
                yield f"{place}:{number}: instead of '{banned}' use: {BANNED.get(banned) or BANNED_NAMES[banned]}"


def sentences(place, text):
    """Reads the lines of a comment as one text, because a sentence may begin in the middle of a line."""
    for number, paragraph in paragraphs(text):
        for match in HEADLESS.finditer(paragraph):
            yield f"{place}:{number}: a sentence without a head: {match.group().lstrip('.:; ')[:60]}"
        if SO_MANY.search(paragraph):
            yield f"{place}:{number}: 'so many' is no count"


def paragraphs(text):
    begin, lines = 0, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        comment = COMMENT.match(line)
        if comment and comment[1].strip():
            begin, lines = begin or number, [*lines, comment[1].strip()]
        elif lines:
            yield begin, " ".join(lines)
            begin, lines = 0, []


def homonyms(root, files):
    """A type name has one meaning in a crate, a public one has one meaning in all crates."""
    of_crates, public = collections.defaultdict(list), collections.defaultdict(dict)
    for path, text in files.items():
        crate = path.relative_to(root).parts[1]
        for visibility, name, number in types_of(text):
            place = f"{path.relative_to(root)}:{number}"
            of_crates[crate, name].append(place)
            if visibility == "pub":
                public[name].setdefault(crate, place)
    for (_, name), places in of_crates.items():
        if len(places) > 1:
            yield f"{places[1]}: a second {name} in one crate, beside {places[0]}"
    for name, places in public.items():
        if len(places) > 1:
            one, other, *_ = places.values()
            yield f"{other}: a second public {name}, beside {one}"


def types_of(text):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        found = TYPE.match(line)
        if found and not ASSOCIATED.match(line) and not any("cfg(test" in before for before in lines[max(0, number - 3) : number - 1]):
            yield (found[1] or "").strip(), found[2], number


def terse_docs(place, text):
    """A public item's doc comment says more than its name, or refers to something by name."""
    lines = [*text.split("\n"), ""]
    for number, line in enumerate(lines):
        # The last line of a comment, and the item after its attributes.
        if not DOC.match(line) or DOC.match(lines[number + 1]):
            continue
        item = next((each for each in lines[number + 1 :] if not ATTRIBUTE.match(each)), "")
        begin = number
        while begin > 0 and DOC.match(lines[begin - 1]):
            begin -= 1
        comment = " ".join(DOC.match(each)[1] for each in lines[begin : number + 1])
        if PUBLIC.match(item) and "`" not in comment and len(comment.split()) <= TERSE:
            yield f"{place}:{begin + 1}: '{comment}' says no more than the name: its unit, or when it is called?"


def errors_of_text(place, text):
    """Errors are types: no `Result<_, String>`, even if written over several lines."""
    code = "\n".join("" if COMMENT.match(line) else STRING.sub('""', line) for line in text.split("\n"))
    for match in re.finditer(r"\bResult<", code):
        depth, parts = 1, [""]
        for at in range(match.end(), len(code)):
            depth += (code[at] in "<([") - (code[at] in ")]" or code[at] == ">" and code[at - 1] != "-")
            if depth == 0:
                break
            parts = [*parts, ""] if code[at] == "," and depth == 1 else [*parts[:-1], parts[-1] + code[at]]
        if len(parts) > 1 and parts[1].strip() == "String":
            yield f"{place}:{code.count(chr(10), 0, match.start()) + 1}: an error that is a text; errors are types"


def plain_locks(place, text):
    _, crate, *rest = place.parts
    name = "/".join([crate, *rest])
    if crate not in MESSAGE_PATH or any(name.startswith(known) for known in PLAIN_LOCKS):
        return
    lines = ["" if COMMENT.match(line) else line for line in text.split("\n")]
    for found in PLAIN_LOCK.finditer(text := "\n".join(lines)):
        number = text.count("\n", 0, found.end()) + 1
        yield f"{place}:{number}: a lock that tests do not see: take one of crate sync, or say in tests/tidy.py when it is taken"


def unused_public(root, files, production):
    """Public functions and constants must be named by another crate, or by tests and benches outside `src`."""
    outside = {path: path.read_text() for path in root.glob("tests/*/**/*.rs") if "target" not in path.parts}
    users = collections.defaultdict(set)
    for path, text in [*files.items(), *outside.items()]:
        parts = path.relative_to(root).parts
        # A binary counts as a user of the library beside it.
        own = parts[1] if parts[0] == "crates" and parts[2] == "src" and path.name != "main.rs" else None
        for name in set(NAME.findall("\n".join("" if COMMENT.match(line) else line for line in text.split("\n")))):
            users[name].add(own)
    for path, text in production.items():
        crate = path.relative_to(root).parts[1]
        for number, line in enumerate(text.split("\n"), 1):
            found = PUBLIC_VALUE.match(line)
            if found and users[found[1]] <= {crate}:
                yield f"{path.relative_to(root)}:{number}: no other crate uses {found[1]}: pub(crate), private, or dead"


def production_of(root, files):
    """The files under `src` that are not test modules, with inline tests blanked out."""
    tests = test_modules(files)
    for path, text in files.items():
        if path.relative_to(root).parts[2] == "src" and not any(path == test or test in path.parents for test in tests):
            yield path, INLINE_TESTS.sub(lambda found: "\n" * found.group().count("\n"), text)


def test_modules(files):
    """Files and directories that are compiled only for tests."""
    found = set()
    for path, text in files.items():
        directory = path.parent if path.name in ("mod.rs", "lib.rs", "main.rs") else path.with_suffix("")
        for beside, name in TEST_MODULE.findall(text):
            found |= {directory / f"{name}.rs", directory / name, path.parent / f"{beside or name}.rs"}
    return found


def names_of_architecture(root, files):
    document = root / "ARCHITECTURE.md"
    if not document.exists():
        return
    crates = {path.name.replace("-", "_"): path.name for path in (root / "crates").iterdir()}
    sources = {name: "\n".join(text for path, text in files.items() if path.relative_to(root).parts[1] == directory) for name, directory in crates.items()}
    section = ""
    for number, line in enumerate(document.read_text().split("\n"), 1):
        section = line.removeprefix("## ") if line.startswith("## ") else section
        for named in NAMED_PATH.findall(line):
            if not (root / named).exists():
                yield f"ARCHITECTURE.md:{number}: {named} does not exist"
        for named in NAMED_ITEM.findall(line):
            crate, *parts = named.split("::")
            if crate in sources and not all(is_declared(part, sources[crate], root / "crates" / crates[crate]) for part in parts):
                yield f"ARCHITECTURE.md:{number}: there is no {named}"
        if section == BEHAVIOURS and line.startswith("| ") and not line.startswith("| behaviour |"):
            yield from hops_of_behaviour(root, files, number, line)


def hops_of_behaviour(root, files, number, line):
    """In the table "Code map", the entry and the hops of a row are in the files at its end."""
    *rest, last = line.strip("| ").split(" | ")
    named_files = NAMED_PATH.findall(last)
    if len(rest) != 3 or not named_files or last != ", ".join(f"`{named}`" for named in named_files):
        yield f"ARCHITECTURE.md:{number}: a row is a behaviour, its entry, its hops, and the paths of their files"
        return
    source = "\n".join(files.get(root / named, "") for named in named_files)
    for named in NAMED_ITEM.findall(" ".join(rest)):
        name = named.split("::")[-1]
        if not re.search(rf"\b(?:fn|struct|enum|trait) {name}\b", source):
            yield f"ARCHITECTURE.md:{number}: {named} is in none of the files of its row"


def tests_of_invariants(root, files):
    """The head of a test names each invariant, and no head names an undefined one."""
    document = root / "ARCHITECTURE.md"
    text = document.read_text() if document.exists() else ""
    if f"## {INVARIANTS}\n" not in text:
        return
    defined = set(DEFINED_INVARIANT.findall(text.split(f"## {INVARIANTS}\n")[1].split("\n## ")[0]))
    named = collections.defaultdict(list)
    for place, head in heads_of_tests(root, files):
        for invariant in INVARIANT.findall(head):
            named[invariant].append(place)
    for invariant in sorted(defined - named.keys()):
        yield f"ARCHITECTURE.md: no head of a test names {invariant}"
    for invariant in sorted(named.keys() - defined):
        yield f"{named[invariant][0]}:1: ARCHITECTURE.md defines no {invariant}"


def heads_of_tests(root, files):
    tests = test_modules(files)
    for path, text in files.items():
        is_test = path.relative_to(root).parts[2] == "tests" or any(path == test or test in path.parents for test in tests)
        if is_test and (head := RUST_HEAD.match(text)):
            yield path.relative_to(root), head[0]
    for path in sorted(root.glob("tests/**/*.py")):
        if not any(part.startswith(".") or part == "node_modules" for part in path.relative_to(root).parts):
            if head := PYTHON_HEAD.match(path.read_text()):
                yield path.relative_to(root), head[1]


def documents(root):
    """The Markdown files, except installed or generated ones."""
    return sorted(
        path
        for path in root.glob("**/*.md")
        if not any(part.startswith(".") or part in ("node_modules", "target") for part in path.relative_to(root).parts)
    )


def sentences_of_document(place, text):
    """The rules for sentences in comments also hold for documents."""
    for number, paragraph in text_paragraphs(text):
        # Inline code does not count as words.
        paragraph = CODE.sub("code", paragraph.strip())
        for match in HEADLESS_PROSE.finditer(paragraph):
            yield f"{place}:{number}: a sentence without a head: {match.group().lstrip('.:; ')[:60]}"
        if SO_MANY.search(paragraph):
            yield f"{place}:{number}: 'so many' is no count"


def is_declared(name, source, directory):
    declared = re.search(rf"\b(?:struct|enum|trait|type|fn|mod|const|static|union)\s+{name}\b|^\s+{name}\b\s*[,({{:=]", source, re.MULTILINE)
    return bool(declared) or any(directory.glob(f"src/**/{name}.rs"))


if __name__ == "__main__":
    sys.exit(main())
