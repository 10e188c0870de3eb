//! Reasons for which a frame is dropped. Each reason has one counter, so that the identity `rx +
//! replicated = forwarded + drops + queued` holds for a port. Each reason also has a line of help
//! that says what an operator can change.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $help:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $help] $name,)*
        }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
            pub const COUNT: usize = Self::ALL.len();

            /// Name in statistics and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// One line for an operator: what happened and what to do.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help,)* }
            }
        }
    };
}

reasons! {
    Runt = "runt", "shorter than an Ethernet header";
    BadHeader = "bad-header", "a header contradicts the frame's length or its own fields";
    BadOffload = "bad-offload", "checksum or segmentation metadata contradicts the headers";
    VlanIngress = "vlan-ingress", "the port does not admit this VLAN";
    VlanEgress = "vlan-egress", "the output port does not carry this VLAN";
    SpoofedMac = "spoofed-mac", "the source MAC is not one bound to the port";
    SpoofedIp = "spoofed-ip", "the source IP, ARP or ND address is not one bound to the port";
    HiddenHeader = "hidden-header",
        "a header behind another VLAN tag or LLC/SNAP, which binding, rules and code point do not \
         see; `qinq` on the port lets one tag more pass";
    ReservedMac = "reserved-mac", "link-local group address (802.1D): never forwarded by a bridge";
    Policed = "policed", "above the port's rate (`police`); buy more or send less";
    LinkLimit =
        "link-limit", "above the port's part of an uplink that is full; until it has room again";
    ReceiveLimit = "receive-limit",
        "above what the receiver may have (`receive`), its part of its tenant's if it has one";
    TenantLimit = "tenant-limit", "above what the receiver's tenant may have (`receive`)";
    SendLimit = "send-limit",
        "above what the sender's tenant may send over the network (`send`)";
    Rule = "rule", "a rule says drop";
    NoDestination = "no-destination", "nobody else is in the tenant's network";
    SamePort = "same-port", "the destination lives behind the port the frame came from";
    NoPort = "no-port", "the rule's output port is not attached";
    SlowPathLimit =
        "slow-path-limit", "the port's allowance of new addresses and floods is used up";
    FdbLimit = "fdb-limit", "the tenant's table of MAC addresses is full";
    PortDown = "port-down", "the output port has no driver or no link";
    RingFull = "ring-full", "the output port had no buffer; the receiver is too slow";
    HandoverFull =
        "handover-full", "the ring to the output port's worker is full; that worker is too slow";
    QueueFull =
        "queue-full", "too much waits for the output already; buy more there or send less";
    QueueLate = "queue-late", "it waited for the output for longer than its queue lets it";
    QueueGone = "queue-gone", "the output's queue or the frame's port was taken away";
    TooBig = "too-big", "larger than the receiver's buffers and not to be segmented";
    TxError = "tx-error", "the output port refused the frame";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_index_their_counters_and_have_unique_names() {
        for (at, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            assert!(DropReason::ALL[..at].iter().all(|other| other.name() != reason.name()));
        }
    }
}
