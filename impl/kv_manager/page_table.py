"""Page tables of running requests in one device tensor, changed where they changed, and the pages a budget holds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvlockstep.reference.errors import InvalidArgument, OutOfSlots


class PageTable:
    """`tensor`, int32 [rows, width] on `device`: the pages of one request per row, in the order of its positions.

    Changes are collected on the host and sent by `flush` in one copy and one scatter, however many requests they
    concern. What stands behind a request's last page is left over from others.
    """

    def __init__(self, rows: int, width: int, device: str | torch.device = "cpu") -> None:
        self.tensor = torch.zeros((rows, width), dtype=torch.int32, device=device)
        self._host = np.zeros((rows, width), np.int32)
        self._changed: list[npt.NDArray[np.int64]] = []
        self._free = list(range(rows - 1, -1, -1))

    @property
    def free_rows(self) -> int:
        """Rows that no request has."""
        return len(self._free)

    def take_row(self) -> int:
        """A row for a request. Raises OutOfSlots."""
        if not self._free:
            raise OutOfSlots(f"all {len(self._host)} rows are taken")
        return self._free.pop()

    def free_row(self, row: int) -> None:
        """The request is gone."""
        self._free.append(row)

    def write(self, row: int, start: int, pages: npt.NDArray[np.int32]) -> None:
        """From its page `start` on, the request has these pages; on the device after the next `flush`."""
        stop = start + len(pages)
        self._host[row, start:stop] = pages
        first = row * self._host.shape[1]
        self._changed.append(np.arange(first + start, first + stop))

    def flush(self) -> None:
        """Brings the device tensor up to date."""
        if not self._changed:
            return
        places = np.concatenate(self._changed)
        self._changed.clear()
        change = torch.from_numpy(np.stack((places, self._host.reshape(-1)[places])))
        target, value = change.to(self.tensor.device)
        self.tensor.view(-1)[target] = value.to(torch.int32)


def page_bytes(
    page_size: int, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, tensor_parallel: int = 1
) -> int:
    """Bytes of one page of K and V on one rank; a rank keeps one head at least. Raises InvalidArgument."""
    sizes = (page_size, layers, kv_heads, head_dim, tensor_parallel)
    shared, odd = divmod(kv_heads, tensor_parallel) if min(sizes) > 0 else (0, 1)
    if odd and (min(sizes) < 1 or tensor_parallel % kv_heads):
        raise InvalidArgument(f"page_size, layers, kv_heads, head_dim, tensor_parallel = {sizes} do not come out even")
    return 2 * page_size * layers * max(shared, 1) * head_dim * dtype.itemsize


def pages_within(budget: int, bytes_per_page: int) -> int:
    """The most pages that fit into `budget` bytes. Raises InvalidArgument."""
    if budget < 0 or bytes_per_page < 1:
        raise InvalidArgument(f"budget={budget}, bytes_per_page={bytes_per_page}: less than 0 or 1")
    return budget // bytes_per_page
