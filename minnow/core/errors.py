"""the exception classes, each with one meaning"""


class MinnowError(Exception):
    """Someone else's mistake, said in one sentence: what was wrong, the value seen, the way out."""


class ConfigError(MinnowError):
    """A setting, or a pair of settings, that cannot work."""


class FormatError(MinnowError):
    """Values that a number format cannot hold, or a width that does not fit its blocks."""


class CheckpointError(MinnowError):
    """Weights on disk that are missing, extra, misshapen or broken."""


class CapacityError(MinnowError):
    """More memory asked for than there is."""


class RequestError(MinnowError):
    """A request that cannot be served.

    Args:
        message: one sentence for the client.
        param: the request field at fault, in the client's own words.
        code: a machine-readable word, such as "context_length_exceeded".
        status: the HTTP status that fits.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class TransferError(MinnowError):
    """Bytes that did not arrive whole: a download or a block from another machine."""
