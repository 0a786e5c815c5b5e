"""A worker refuses a state dir that is not the driver's, and says which of two causes it is."""

import os
from pathlib import Path

import pytest

from statestore.errors import HostFailure, StateDirNotShared
from statestore.layout.folders import StateLayout
from statestore.operations.running.run import PlannedTask, check_shared


def test_what_lies_in_place_of_the_drivers_nonce_is_said(tmp_path: Path) -> None:
    layout, planned = StateLayout(tmp_path, "shop"), PlannedTask("0_0", [], True, "ours")
    layout.application_dir.mkdir()
    with pytest.raises(StateDirNotShared, match="is not there, but the driver wrote it"):
        check_shared(layout, planned)
    layout.nonce_file.write_text("theirs")
    with pytest.raises(StateDirNotShared, match=r"is of another run: one began .* after this one"):
        check_shared(layout, planned)
    layout.nonce_file.write_text("ours")
    check_shared(layout, planned)
    layout.nonce_file.unlink()
    os.mkfifo(layout.nonce_file)
    with pytest.raises(HostFailure, match="FIFO or a device"):
        check_shared(layout, planned)
