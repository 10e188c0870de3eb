//! Leaves a session to the next process of the switch, and continues a session of the former
//! process.
//!
//! # Approach
//! The next process passes the kept state to the functions that handle the messages of a driver, so
//! each value is checked as if a driver had sent it. Only the position of a ring is taken from the
//! state: the worker had stopped exactly there, so no descriptor is used twice or lost.

use std::fs::File;
use std::os::fd::OwnedFd;

use vhost::vhost_user::message::{
    VhostUserInflight, VhostUserLog, VhostUserMemoryRegion, VhostUserVringAddrFlags,
};
use vhost::vhost_user::{Result, VhostUserBackendReqHandlerMut as _};

use super::{Ring, Session, refuse};
use crate::port::guest_memory::REGIONS_MAX;
use crate::port::kept::{
    FileNumber, Files, KeptInflight, KeptRange, KeptRegion, KeptRing, KeptSession,
};
use crate::port::split_ring::RingAddresses;

/// Files that a driver shared, with the offset and length in bytes of the shared range.
#[derive(Debug, Default)]
pub(super) struct SharedFiles {
    pub(super) log: Option<(File, u64, u64)>,
    /// The last element has the number of queues and the number of descriptors per queue.
    pub(super) inflight: Option<(File, u64, u64, (u16, u16))>,
}

impl Session {
    /// Whether another process can continue the session. The driver of a session without features
    /// has not begun yet, and connects again.
    pub(in super::super) const fn can_continue(&self) -> bool {
        self.features != 0
    }

    /// Takes every ring out of the worker and returns the session's state. The session has neither
    /// rings nor memory afterwards.
    ///
    /// # Errors
    /// Returns an error if no file descriptor is free. The session has ended in this case too.
    pub(in super::super) fn keep(
        &mut self,
        connection: OwnedFd,
        files: &mut Files,
    ) -> std::io::Result<KeptSession> {
        (0..self.rings.len()).for_each(|index| self.halt(index));
        let regions = self.memory.as_ref().map(|memory| memory.specs()).transpose();
        let shared = core::mem::take(&mut self.shared_files);
        let removed = core::mem::take(&mut self.removed);
        let has_inflight = shared.inflight.is_some();
        let rings = core::mem::take(&mut self.rings);
        self.end();
        let mut range = |file: File, offset, len| KeptRange { file: files.put(file), offset, len };
        let memory = regions?.unwrap_or_default().into_iter().map(|spec| KeptRegion {
            guest: spec.guest,
            user: spec.user,
            range: range(spec.file, spec.offset, spec.len),
        });
        let memory = memory.collect();
        let log = shared.log.map(|(file, offset, len)| range(file, offset, len));
        let inflight = shared.inflight.map(|(file, offset, len, (queues, size))| KeptInflight {
            range: range(file, offset, len),
            queues,
            size,
        });
        Ok(KeptSession {
            connection: files.put(connection),
            features: self.features,
            protocol: self.protocol,
            memory,
            log,
            inflight,
            rings: rings.into_iter().map(|ring| kept_ring(ring, has_inflight, files)).collect(),
            removed,
        })
    }

    /// Applies the state of a session whose features were negotiated again, and starts its rings.
    ///
    /// # Errors
    /// Returns an error if a value does not fit the port, or if a descriptor is missing.
    pub(in super::super) fn resume(&mut self, kept: KeptSession, files: &mut Files) -> Result<()> {
        if !kept.memory.is_empty() {
            let (mut regions, mut mapped) = (Vec::new(), Vec::new());
            for KeptRegion { guest, user, range } in kept.memory {
                regions.push(VhostUserMemoryRegion::new(guest, range.len, user, range.offset));
                mapped.push(take(files, range.file)?);
            }
            self.set_mem_table(&regions, mapped, None)?;
        }
        self.removed = kept.removed;
        self.removed.truncate(REGIONS_MAX);
        if let Some(KeptRange { file, offset, len }) = kept.log {
            self.set_log_base(&VhostUserLog::new(len, offset), take(files, file)?)?;
        }
        if let Some(KeptInflight { range, queues, size }) = kept.inflight {
            let region = VhostUserInflight::new(range.len, range.offset, queues, size);
            self.set_inflight_fd(&region, take(files, range.file)?)?;
        }
        for (index, ring) in kept.rings.into_iter().enumerate() {
            self.resume_ring(u8::try_from(index).unwrap_or(u8::MAX), &ring, files)?;
        }
        Ok(())
    }

    fn resume_ring(&mut self, index: u8, kept: &KeptRing, files: &mut Files) -> Result<()> {
        let number = u32::from(index);
        if kept.size > 0 {
            self.set_vring_num(number, kept.size)?;
        }
        if let Some([descriptors, available, used]) = kept.addresses {
            let flags = match kept.log_used {
                Some(_) => VhostUserVringAddrFlags::VHOST_VRING_F_LOG,
                None => VhostUserVringAddrFlags::empty(),
            };
            let log = kept.log_used.unwrap_or(0);
            self.set_vring_addr(number, flags, descriptors, used, available, log)?;
        }
        self.set_vring_base(number, kept.base)?;
        if let Some(call) = kept.call {
            self.set_vring_call(index, Some(take(files, call)?))?;
        }
        let (_, ring) = self.ring(number)?;
        ring.exact = kept.exact;
        // The inflight region is only for a ring whose position is unknown, or older than the
        // region.
        ring.recover &= !kept.exact && !kept.recovered;
        ring.enabled = kept.enabled;
        if kept.kicked {
            // The last message, because it starts the ring.
            let kick = kept.kick.map(|kick| take(files, kick)).transpose()?;
            self.set_vring_kick(index, kick)?;
        }
        Ok(())
    }
}

fn kept_ring(ring: Ring, has_inflight: bool, files: &mut Files) -> KeptRing {
    let RingAddresses { descriptors, available, used } = ring.at;
    KeptRing {
        size: ring.size,
        addresses: ring.addressed.then_some([descriptors, available, used]),
        log_used: ring.log_used,
        base: ring.base,
        exact: ring.exact,
        kick: ring.kick.map(|kick| files.put(kick)),
        call: ring.call.map(|call| files.put(call)),
        kicked: ring.kicked,
        enabled: ring.enabled,
        recovered: has_inflight && !ring.recover && !ring.exact,
    }
}

fn take(files: &mut Files, number: FileNumber) -> Result<File> {
    files.take_file(number).map_err(refuse)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::Arc;

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use penstock_units::QueueId;
    use vhost::vhost_user::message::VhostUserSingleMemoryRegion;

    use super::super::super::halt::Halt;
    use super::super::super::{SharedState, VhostUserConfig};
    use super::super::{ExchangeResult, F_VERSION_1, RingsOwner};
    use super::*;
    use crate::port::ControlMessage;

    /// Owner of a session's rings, none of which runs.
    struct Nobody;

    impl RingsOwner for Nobody {
        fn exchange(&self, _: QueueId, _: ControlMessage) -> ExchangeResult {
            Err("no ring runs".to_owned().into())
        }

        fn ring_bell(&self, _: QueueId) {}
    }

    /// A session whose features are negotiated.
    fn session() -> Session {
        let config = VhostUserConfig::new("kept", PathBuf::new());
        let alarm = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let halt = Arc::new(Halt::new(Arc::new(alarm)));
        let mut session = Session::new(&config, Box::new(Nobody), SharedState::default(), halt);
        session.features = F_VERSION_1;
        session
    }

    fn restarted(mut before: Session) -> Session {
        let (ours, _peer) = UnixStream::pair().unwrap();
        let mut files = Files::default();
        let kept = before.keep(ours.into(), &mut files).unwrap();
        let mut after = session();
        after.resume(kept, &mut files).unwrap();
        after
    }

    #[test]
    fn a_ring_that_ran_since_the_inflight_region_came_does_not_use_it_after_a_restart() {
        let mut before = session();
        let wanted = VhostUserInflight::new(0, 0, 2, 64);
        let (region, file) = before.get_inflight_fd(&wanted).unwrap();
        before.set_inflight_fd(&region, file).unwrap();
        // Ring 1 ran and was stopped, and then the driver gave it another position.
        (before.rings[1].recover, before.rings[1].base) = (false, 7);
        let after = restarted(before);
        assert!(after.inflight.is_some());
        assert_eq!(after.rings.iter().map(|ring| ring.recover).collect::<Vec<_>>(), [true, false]);
        assert_eq!(after.rings[1].base, 7);
    }

    #[test]
    fn a_driver_may_repeat_the_removal_of_a_region_after_a_restart() {
        let mut before = session();
        before.removed.push((0x1000, 0x7000, 0x2000));
        let mut after = restarted(before);
        let region = |guest| VhostUserSingleMemoryRegion::new(guest, 0x2000, 0x7000, 0);
        after.remove_mem_region(&region(0x1000)).unwrap();
        assert!(after.remove_mem_region(&region(0x3000)).is_err());
    }
}
