"""A parser for the Prometheus expressions that alerts use: whether an expression is valid, and which series it reads."""

import re

TOKEN = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)|(?P<text>"[^"]*")|(?P<sign>[<>=!]=|[-+*/<>(){}\[\],=]))'
)
DURATION = re.compile(r"\s*(\d+[smhd])+")
# By precedence, the lowest first; set operators such as `unless` are not supported.
OPERATORS = [("or",), ("and",), ("==", "!=", "<", ">", "<=", ">="), ("+", "-"), ("*", "/")]
AGGREGATIONS = {"sum", "min", "max", "count", "avg"}
OF_RANGES = {"rate", "increase", "delta", "deriv", "changes", "predict_linear", "avg_over_time", "max_over_time"}
FUNCTIONS = OF_RANGES | {"time", "abs", "vector"}


class Selector:
    def __init__(self, name, matchers, is_range):
        self.name, self.matchers, self.is_range = name, matchers, is_range


class Expression:
    """Raises an AssertionError if the text is not a valid expression."""

    def __init__(self, text):
        self.text, self.at = text, 0
        self.selectors = []
        # Labels that an aggregation keeps; `None` if there is no aggregation.
        self.grouping = None
        self.binary(0)
        assert not self.text[self.at :].strip(), self.rest()

    def rest(self):
        return f"{self.text!r}: unexpected at {self.text[self.at:]!r}"

    def peek(self):
        found = TOKEN.match(self.text, self.at)
        return found and found[0].strip()

    def take(self, kind=None):
        found = TOKEN.match(self.text, self.at)
        assert found and (kind is None or found[kind] is not None), self.rest()
        self.at = found.end()
        return found[0].strip()

    def expect(self, sign):
        assert self.peek() == sign, self.rest()
        self.take()

    def binary(self, level):
        if level == len(OPERATORS):
            return self.operand()
        self.binary(level + 1)
        while self.peek() in OPERATORS[level]:
            self.take()
            self.binary(level + 1)

    def operand(self):
        if self.peek() == "(":
            self.take()
            self.binary(0)
            self.expect(")")
        elif self.peek() and self.peek()[0].isdigit():
            self.take("number")
        else:
            name = self.take("name")
            if name in AGGREGATIONS:
                self.aggregation()
            elif self.peek() == "(":
                self.call(name)
            else:
                self.selector(name)

    def aggregation(self):
        if self.peek() == "by":
            self.take()
            self.grouping = self.listed("(", ")", lambda: self.take("name"))
        self.expect("(")
        self.binary(0)
        self.expect(")")

    def call(self, name):
        assert name in FUNCTIONS, self.rest()
        before = len(self.selectors)
        self.listed("(", ")", lambda: self.binary(0))
        assert all(each.is_range == (name in OF_RANGES) for each in self.selectors[before:]), f"{self.text!r}: {name} of what?"

    def selector(self, name):
        matchers = self.listed("{", "}", self.matcher) if self.peek() == "{" else []
        is_range = self.peek() == "["
        if is_range:
            self.take()
            duration = DURATION.match(self.text, self.at)
            assert duration, self.rest()
            self.at = duration.end()
            self.expect("]")
        self.selectors.append(Selector(name, dict(matchers), is_range))

    def matcher(self):
        label = self.take("name")
        self.expect("=")
        return label, self.take("text").strip('"')

    def listed(self, begin, end, each):
        self.expect(begin)
        found = []
        while self.peek() != end:
            found.append(each())
            if self.peek() != end:
                self.expect(",")
        self.expect(end)
        return found
