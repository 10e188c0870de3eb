//! The module `drop` defines the reasons why the switch drops a frame. Each drop reason has one
//! counter, so that the identity `rx + replicated = forwarded + drops + queued` is true for a port.
//! Each drop reason also has a line of help that tells the operator what to change.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $help:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $help] $name,)*
        }

        impl DropReason {
            /// All drop reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the drop reason's name in statistics and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns one line of help that explains the drop to an operator, with a remedy if
            /// there is a remedy.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help,)* }
            }
        }
    };
}

reasons! {
    Runt = "runt", "the frame is shorter than an Ethernet header";
    BadHeader = "bad-header", "a header contradicts the frame's length or its own fields";
    BadOffload = "bad-offload", "checksum or segmentation metadata contradicts the headers";
    VlanIngress = "vlan-ingress", "the port does not admit this VLAN";
    VlanEgress = "vlan-egress", "the output port does not carry this VLAN";
    SpoofedMac = "spoofed-mac", "the source MAC is not bound to the port";
    SpoofedIp = "spoofed-ip", "the source IP, ARP or ND address is not bound to the port";
    HiddenHeader = "hidden-header",
        "a header is behind a second VLAN tag or LLC/SNAP, where the port's policy cannot check \
         it; set `qinq` on the port to allow one more tag";
    ReservedMac = "reserved-mac",
        "the destination is a link-local group address (802.1D), which no bridge forwards";
    Policed = "policed",
        "the frame exceeds the port's rate (`police`); buy a higher rate or send less";
    ReceiveLimit = "receive-limit",
        "the frame exceeds the receiver's limit or part of the tenant's limit (`receive`)";
    TenantLimit = "tenant-limit",
        "the frame exceeds the limit of the receiver's tenant (`receive`)";
    SendLimit = "send-limit",
        "the frame exceeds the network limit of the sender's tenant (`send`)";
    InboundShare = "inbound-share",
        "the frame exceeds the receiver's share of a full uplink (`inbound`)";
    PairLimit = "pair-limit",
        "the frame exceeds the fabric's limit on its pair of VMs; send less, or buy a higher \
         guarantee";
    PairReceiveLimit = "pair-receive-limit",
        "the frame exceeds the rate that the receiver has in its fabric (`rate_allocation`)";
    RateMarker = "rate-marker",
        "a host of the fabric sent the frame to this switch, not to a VM (`rate_allocation`)";
    ForgedMarker = "forged-marker",
        "a VM sent a frame that only hosts of the fabric may send (`rate_allocation`)";
    Rule = "rule", "a rule says drop";
    NoDestination = "no-destination", "no other port is in the tenant's network";
    SamePort = "same-port", "the destination is behind the port that sent the frame";
    NoPort = "no-port", "the rule's output port is not attached";
    SlowPathLimit =
        "slow-path-limit", "the port's allowance of new addresses and floods is used up";
    FdbLimit = "fdb-limit", "the tenant's table of MAC addresses is full";
    PortDown = "port-down", "the output port has no driver or no link";
    RingFull = "ring-full", "the output port had no buffer; the receiver is too slow";
    HandoverFull =
        "handover-full", "the ring to the output port's worker is full; the worker is too slow";
    EarlySignal = "early-signal",
        "the frame waited long for a limit, and its loss tells TCP to slow down (RFC 8289)";
    QueueFull =
        "queue-full", "the output's queue is full; buy a higher rate for the output or send less";
    QueueLate = "queue-late",
        "the frame waited for the output for longer than the output's queue allows";
    QueueGone = "queue-gone", "the output's queue or the frame's port was removed";
    TooBig = "too-big", "the frame is larger than the receiver's buffers, and cannot be segmented";
    TxError = "tx-error", "the output port refused the frame";
}

impl DropReason {
    /// Whether a frame with this reason is dropped before the rules see it. The headers and the
    /// offload metadata of such a frame may be unchecked.
    #[must_use]
    pub const fn precedes_rules(self) -> bool {
        matches!(
            self,
            Self::Runt
                | Self::BadHeader
                | Self::BadOffload
                | Self::VlanIngress
                | Self::SpoofedMac
                | Self::SpoofedIp
                | Self::HiddenHeader
                | Self::ReservedMac
                | Self::Policed
                | Self::EarlySignal
                | Self::PortDown
        )
    }
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
