"""No module imports itself by way of others, within functions either."""

from graphlib import TopologicalSorter

import pytest

grimp = pytest.importorskip("grimp", reason="import-linter is not installed")


def test_imports_of_modules_have_no_circle():
    graph = grimp.build_graph("gemm_model", exclude_type_checking_imports=True)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # Raises CycleError, which names the modules of a circle.
    assert len(list(TopologicalSorter(imported).static_order())) > 200
