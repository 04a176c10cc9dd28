"""Remotes with several addresses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.ovsdb.database import split_remote

ADDRESS = st.one_of(
    st.from_regex(r"unix:/[a-z/,.]{1,20}", fullmatch=True),
    st.from_regex(r"(tcp|ssl):([0-9.]{7,15}|\[[0-9a-f:]{2,20}\]|[a-z.]{1,10}):[0-9]{1,5}", fullmatch=True),
)


@given(st.lists(ADDRESS, min_size=1, max_size=5))
def test_addresses_between_commas_are_those_that_were_joined(given: list[str]) -> None:
    """They keep their order, and a comma in a path does not end an address."""
    assert split_remote(",".join(given)) == tuple(given)
