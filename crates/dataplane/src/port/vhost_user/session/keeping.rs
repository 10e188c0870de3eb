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
            rings: rings.into_iter().map(|ring| kept_ring(ring, files)).collect(),
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
        // The inflight region is only for a ring whose exact position is unknown.
        ring.recover &= !kept.exact;
        ring.enabled = kept.enabled;
        if kept.kicked {
            // The last message, because it starts the ring.
            let kick = kept.kick.map(|kick| take(files, kick)).transpose()?;
            self.set_vring_kick(index, kick)?;
        }
        Ok(())
    }
}

fn kept_ring(ring: Ring, files: &mut Files) -> KeptRing {
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
    }
}

fn take(files: &mut Files, number: FileNumber) -> Result<File> {
    files.take_file(number).map_err(refuse)
}
