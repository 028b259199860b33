"""Every fault of the table ends as it should, and no file that was there before is lost."""

from __future__ import annotations

import pytest

from faults.harness import all_cases, try_case


@pytest.mark.parametrize("chosen", all_cases().values(), ids=all_cases().keys())
def test_fault(chosen, tmp_path):
    verdict, reason, _ = try_case(chosen, tmp_path)
    assert verdict == "right", f"{verdict}: {reason}"
