//! Numeric identifiers as newtypes, so that a port's number cannot be passed where a worker's is
//! expected.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// The number as an index into a table.
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
    /// Slot of a port in the switch. A later port may get the slot of a deleted one.
    PortId,
    u16
);
id!(
    /// Slot of a tenant in the switch.
    TenantId,
    u16
);
id!(
    /// Queue pair of a port, counted from 0.
    QueueId,
    u16
);
id!(
    /// Worker (the polling thread of one I/O core), counted from 0.
    WorkerId,
    u16
);
id!(
    /// Slot of a VM in a vCPU scheduler.
    VmId,
    u16
);
id!(
    /// Slot of a vCPU in a vCPU scheduler.
    VcpuId,
    u16
);
id!(
    /// Physical CPU, numbered from 0 as in Linux.
    CpuId,
    u16
);
