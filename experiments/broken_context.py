"""What CUDA says once a context can launch nothing more."""

_SIGNS = (
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "illegal instruction",
    "unspecified launch failure",
    "hardware stack error",
    "uncorrectable ecc error",
    "invalid program counter",
)


def says_broken(message: str) -> bool:
    """Whether an error message means that the process can use its GPU no longer."""
    return any(sign in message.lower() for sign in _SIGNS)
