//! What the snapshot says about the receivers of frames from an uplink.

use super::Snapshot;
use crate::batch::Verdict;
use crate::pairs::Receivers;

impl Receivers for Snapshot {
    fn leads_out(&self, port: u16) -> bool {
        self.is_shared(port)
    }

    #[inline]
    fn code_point(&self, verdict: Verdict, uplink: u16) -> Option<u8> {
        let of = |port: u16| self.port(port).and_then(|policy| policy.dscp);
        let members = match verdict {
            Verdict::Output(port) => return of(port),
            Verdict::Drop(_) => return None,
            Verdict::Flood(domain) => &self.domain(domain)?.members,
            Verdict::OutputSet(set) => self.output_sets.get(usize::from(set))?,
        };
        let mut all = members.iter().filter(|port| **port != uplink).map(|port| of(*port));
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }
}
