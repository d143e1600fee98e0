"""docs/metrics.md lists each metric that a broker and a pool show, with its type, labels and help."""

import metrics_reference


def test_the_committed_metrics_reference_is_up_to_date(tmp_path):
    assert metrics_reference.DOCUMENT.read_text() == metrics_reference.reference(tmp_path), "out of date: make metrics-reference"
