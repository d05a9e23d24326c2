"""Keys of addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address


def address_key(address: str | IPv4Address | IPv6Address, masklen: int = 64) -> str:
    """The key by which limits count an address, as SQL's rl_address_key: that of IPv4 itself, in IPv6, too
    (::ffff:192.0.2.1), and of IPv6 its network, since a client has 2^64 addresses.

    masklen: bits of the network of IPv6, 0 to 128.
    Raises ValueError for what is no address, such as "" or "unix:".
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
    # PostgreSQL writes these as addresses of IPv4.
    text = f"::{IPv4Address(int(network))}" if 0xFFFF < int(network) < 2**32 else str(network)
    return text if masklen == 128 else f"{text}/{masklen}"
