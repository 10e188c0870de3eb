//! Loads the BPF program into the kernel, tells it the plan and reads its reports.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::plan::Plan;
use crate::wire::{Ended, Knobs, Place, Report};

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/penstock.bpf.o"));
const STATE: &str = "/sys/kernel/sched_ext/state";
/// Maps that other processes may read, as `show` does.
const SHARED: [&str; 2] = ["reports", "events"];

/// The scheduler while it is the kernel's. It is taken out when this is dropped, and when the
/// process ends without that.
#[derive(Debug)]
pub struct Scheduler {
    // Dropped first: the maps belong to what it holds.
    link: Option<Link>,
    object: Object,
    pinned: Vec<PathBuf>,
}

/// What the kernel says of sched_ext: `disabled`, `enabled`, or what is between.
///
/// # Errors
/// A kernel without it.
pub fn state() -> Result<String> {
    let text = fs::read_to_string(STATE).with_context(|| {
        format!(
            "{STATE}: this kernel has no sched_ext; it needs 6.12 or later with \
             CONFIG_SCHED_CLASS_EXT, else use the actuator boost"
        )
    })?;
    Ok(text.trim().to_owned())
}

impl Scheduler {
    /// Loads the program and makes it the kernel's scheduler.
    ///
    /// # Errors
    /// No sched_ext, another such scheduler in place, no permission, or the kernel's refusal of
    /// the program with its words.
    pub fn start(plan: &Plan) -> Result<Self> {
        let state = state()?;
        ensure!(state == "disabled", "another sched_ext scheduler is {state}; end it first");
        let mut builder = ObjectBuilder::default();
        let open = builder.open_memory(PROGRAM).context("the BPF program")?;
        let object = open.load().context("the kernel refuses the BPF program (needs root)")?;
        let mut scheduler = Self { link: None, object, pinned: Vec::new() };
        scheduler.tell(plan)?;
        let mut maps = scheduler.object.maps_mut();
        let mut ops = maps
            .find(|map| map.name() == "penstock")
            .context("the BPF program has no scheduler")?;
        let link = ops.attach_struct_ops().context("the kernel does not take the scheduler")?;
        drop(maps);
        scheduler.link = Some(link);
        on_each_cpu(|| scheduler.start_poll())?;
        Ok(scheduler)
    }

    /// On the processor that this runs on.
    fn start_poll(&self) -> Result<()> {
        let mut found = self.object.progs_mut().find(|program| program.name() == "start_poll");
        let program = found.as_mut().context("the BPF program has no start_poll")?;
        let output = program.test_run(ProgramInput::default()).context("the poll")?;
        ensure!(output.return_value == 0, "the poll: error {}", output.return_value.cast_signed());
        Ok(())
    }

    fn map(&self, name: &str) -> Result<libbpf_rs::Map<'_>> {
        let found = self.object.maps().find(|map| map.name() == name);
        found.with_context(|| format!("the BPF program has no map {name}"))
    }

    fn tell(&self, plan: &Plan) -> Result<()> {
        let (terms, reports, places) =
            (self.map("terms")?, self.map("reports")?, self.map("places")?);
        for (seat, place) in &plan.places {
            places.update(&seat.to_ne_bytes(), &place.encode(), MapFlags::ANY)?;
        }
        for (tid, term) in &plan.terms {
            reports.update(&tid.to_ne_bytes(), &[0; Report::SIZE], MapFlags::ANY)?;
            terms.update(&tid.to_ne_bytes(), &term.encode(), MapFlags::ANY)?;
        }
        Ok(())
    }

    /// A thread that has ended: what its number stands for next is not what was meant.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forget(&self, tid: u32, seat: Option<u32>) -> Result<()> {
        if let Some(seat) = seat {
            let free = Place::FREE.encode();
            self.map("places")?.update(&seat.to_ne_bytes(), &free, MapFlags::ANY)?;
        }
        self.map("terms")?.delete(&tid.to_ne_bytes())?;
        Ok(())
    }

    /// Test: it dispatches nothing from now on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stall(&self) -> Result<()> {
        self.map("knobs")?.update(&[0; 4], &Knobs::encode(true), MapFlags::ANY)?;
        Ok(())
    }

    /// Whether the kernel has taken it out, and why.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ended(&self) -> Result<Option<Ended>> {
        let knobs = self.map("knobs")?.lookup(&[0; 4], MapFlags::ANY)?;
        Ok(knobs.and_then(|bytes| Knobs::decode(&bytes)))
    }

    /// What each thread of the plan got.
    ///
    /// # Errors
    /// The kernel's.
    pub fn reports(&self) -> Result<Vec<(u32, Report)>> {
        read_reports(&self.map("reports")?)
    }

    /// Lets other processes read the reports, and deliver events, under `folder` of a mounted
    /// bpffs.
    ///
    /// # Errors
    /// No bpffs there, or no permission.
    pub fn share(&mut self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        for name in SHARED {
            let path = folder.join(name);
            // One may be left of a loader that was killed; its scheduler is gone.
            let _ = fs::remove_file(&path);
            let mut map = self.object.maps_mut().find(|map| map.name() == name);
            let map = map.as_mut().with_context(|| format!("the BPF program has no map {name}"))?;
            map.pin(&path).with_context(|| format!("{}", path.display()))?;
            self.pinned.push(path);
        }
        Ok(())
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.link.take();
        for path in &self.pinned {
            let _ = fs::remove_file(path);
        }
    }
}

/// Runs something once on every processor that this thread may use.
fn on_each_cpu(run: impl Fn() -> Result<()>) -> Result<()> {
    let me = Pid::from_raw(0);
    let before = sched_getaffinity(me)?;
    for cpu in 0..CpuSet::count() {
        if !before.is_set(cpu)? {
            continue;
        }
        let mut only = CpuSet::new();
        only.set(cpu)?;
        // One that is not there, although it is allowed.
        if sched_setaffinity(me, &only).is_ok() {
            run().with_context(|| format!("cpu {cpu}"))?;
        }
    }
    Ok(sched_setaffinity(me, &before)?)
}

/// The reports of a scheduler that another process runs and shares under `folder`.
///
/// # Errors
/// None is shared there.
pub fn shared_reports(folder: &Path) -> Result<Vec<(u32, Report)>> {
    let path = folder.join("reports");
    let state = state()?;
    if state != "enabled" {
        bail!("no sched_ext scheduler runs ({state}); `penstock-vcpu-scx run` starts it");
    }
    let map = MapHandle::from_pinned_path(&path)
        .with_context(|| format!("{}: does the scheduler share its reports?", path.display()))?;
    read_reports(&map)
}

fn read_reports(map: &impl MapCore) -> Result<Vec<(u32, Report)>> {
    let mut all = Vec::new();
    for key in map.keys() {
        let Some(bytes) = map.lookup(&key, MapFlags::ANY)? else { continue };
        let tid = u32::from_ne_bytes(key.as_slice().try_into().context("a report's key")?);
        all.push((tid, Report::decode(&bytes).context("a report of another size")?));
    }
    all.sort_unstable_by_key(|(tid, _)| *tid);
    Ok(all)
}
