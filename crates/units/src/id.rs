//! Newtypes for the things that are named by number.

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
    /// A port's slot in the switch; reused after the port is deleted.
    PortId,
    u16
);
id!(
    /// A tenant's slot in the switch.
    TenantId,
    u16
);
id!(
    /// A queue pair of a port, from 0.
    QueueId,
    u16
);
id!(
    /// A worker (the polling thread of one I/O core), from 0.
    WorkerId,
    u16
);
id!(
    /// A VM's slot in a scheduler of virtual processors.
    VmId,
    u16
);
id!(
    /// A virtual processor's slot in a scheduler.
    VcpuId,
    u16
);
id!(
    /// A physical processor, from 0.
    CpuId,
    u16
);
