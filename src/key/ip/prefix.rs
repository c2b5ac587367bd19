use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::Error;

/// By how many of its bits an address counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::key) struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// IPv4 whole, and IPv6 by /64: a client has at least all addresses that share those.
    pub(in crate::key) const DEFAULT: Self = Self { ipv4: 32, ipv6: 64 };

    #[track_caller]
    pub(in crate::key) const fn ipv4(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 32, "an IPv4 prefix has 1 to 32 bits");
        Self { ipv4: bits, ..self }
    }

    #[track_caller]
    pub(in crate::key) const fn ipv6(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "an IPv6 prefix has 1 to 128 bits");
        Self { ipv6: bits, ..self }
    }

    pub(in crate::key) fn try_ipv4(self, bits: u8) -> Result<Self, Error> {
        if (1..=32).contains(&bits) {
            Ok(Self { ipv4: bits, ..self })
        } else {
            Err(Error::config(format!("an IPv4 prefix has 1 to 32 bits, not {bits}")))
        }
    }

    pub(in crate::key) fn try_ipv6(self, bits: u8) -> Result<Self, Error> {
        if (1..=128).contains(&bits) {
            Ok(Self { ipv6: bits, ..self })
        } else {
            Err(Error::config(format!("an IPv6 prefix has 1 to 128 bits, not {bits}")))
        }
    }

    /// What stands for an address. First it becomes the IPv4 address that it may stand for, and then it is cut: the
    /// other way round all of IPv4 would be one key.
    #[inline]
    pub(in crate::key) fn key_of(self, address: IpAddr) -> IpAddr {
        match translated(address.to_canonical()) {
            IpAddr::V4(v4) => {
                let mask = u32::MAX << (32 - u32::from(self.ipv4));
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6));
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }
}

/// An IPv4 client as a NAT64 shows it: in the last 32 bits of `64:ff9b::/96` (RFC 6052).
fn translated(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// The setters of an extractor that counts by the `prefixes` of an address.
macro_rules! prefix_setters {
    () => {
        /// Counts IPv6 addresses by their first `bits` bits.
        ///
        /// # Panics
        ///
        /// If `bits` is not in 1 to 128. In a `const` the compiler shows the panic.
        #[must_use]
        #[track_caller]
        pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
            self.prefixes = self.prefixes.ipv6(bits);
            self
        }

        /// As [`ipv6_prefix`](Self::ipv6_prefix), never panicking.
        ///
        /// # Errors
        ///
        /// If `bits` is not in 1 to 128.
        pub fn try_ipv6_prefix(mut self, bits: u8) -> Result<Self, Error> {
            self.prefixes = self.prefixes.try_ipv6(bits)?;
            Ok(self)
        }

        /// Counts IPv4 addresses by their first `bits` bits, for a wider tier: by default by all 32.
        ///
        /// # Panics
        ///
        /// If `bits` is not in 1 to 32. In a `const` the compiler shows the panic.
        #[must_use]
        #[track_caller]
        pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
            self.prefixes = self.prefixes.ipv4(bits);
            self
        }

        /// As [`ipv4_prefix`](Self::ipv4_prefix), never panicking.
        ///
        /// # Errors
        ///
        /// If `bits` is not in 1 to 32.
        pub fn try_ipv4_prefix(mut self, bits: u8) -> Result<Self, Error> {
            self.prefixes = self.prefixes.try_ipv4(bits)?;
            Ok(self)
        }
    };
}

pub(in crate::key) use prefix_setters;
