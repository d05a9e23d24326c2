"""Keys of addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address


def address_key(address: str | IPv4Address | IPv6Address, masklen: int = 64) -> str:
    """The key under which limits count an address, as rl_address_key in SQL: an IPv4 address itself, also in IPv6
    (::ffff:192.0.2.1), and the network of an IPv6 address, because a client has 2^64 addresses.

    masklen: the bits of the IPv6 network, 0 to 128.
    Raises ValueError for anything else, such as "" or "unix:".
    """
    if isinstance(masklen, bool) or not isinstance(masklen, int) or not 0 <= masklen <= 128:
        raise ValueError(f"masklen is {masklen!r}; allowed: 0 to 128")
    try:
        found = ip_address(address.partition("%")[0] if isinstance(address, str) else address)
    except ValueError:
        raise ValueError("address is none; allowed: an address of IPv4 or IPv6") from None
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    network = IPv6Network((int(found), masklen), strict=False).network_address
    # PostgreSQL writes these as IPv4 addresses.
    text = f"::{IPv4Address(int(network))}" if 0xFFFF < int(network) < 2**32 else str(network)
    return text if masklen == 128 else f"{text}/{masklen}"
