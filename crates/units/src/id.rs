//! Numeric identifiers have separate types, so that the compiler rejects a port's number where a
//! worker's number is expected.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Returns the identifier as an index into a table.
            #[inline]
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// Index of a port in the switch. The index of a deleted port may be assigned to a later port.
    PortId,
    u16
);
id!(
    /// Index of a tenant in the switch, counted from 0.
    TenantId,
    u16
);
id!(
    /// Index of a queue pair in its port, counted from 0.
    QueueId,
    u16
);
id!(
    /// Index of a worker (the polling thread of one I/O core), counted from 0.
    WorkerId,
    u16
);
id!(
    /// Index of a VM in a vCPU scheduler, counted from 0.
    VmId,
    u16
);
id!(
    /// Index of a vCPU in a vCPU scheduler, counted from 0 over all VMs.
    VcpuId,
    u16
);
id!(
    /// Number of a CPU, counted from 0 as in Linux.
    CpuId,
    u16
);
