//! Loads the BPF program into the kernel, passes the plan to the program and reads the program's
//! reports.

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
/// Names of the BPF maps that other processes may open, for example `penstock-vcpu-scx show`.
const SHARED: [&str; 2] = ["reports", "events"];

/// The running sched_ext scheduler. The kernel removes the scheduler when this value is dropped or
/// the process ends.
#[derive(Debug)]
pub struct Scheduler {
    // Dropped before `object`, which has the maps that the scheduler uses.
    link: Option<Link>,
    object: Object,
    pinned: Vec<PathBuf>,
}

/// Returns the state of sched_ext in the kernel: `disabled`, `enabled`, or a transition between
/// `disabled` and `enabled`.
///
/// # Errors
/// Returns an error if the kernel has no sched_ext.
pub fn state() -> Result<String> {
    let text = fs::read_to_string(STATE).with_context(|| {
        format!(
            "{STATE}: this kernel has no sched_ext; use Linux 6.12 or later with \
             CONFIG_SCHED_CLASS_EXT, or the actuator boost"
        )
    })?;
    Ok(text.trim().to_owned())
}

impl Scheduler {
    /// Loads the BPF program and makes the program the kernel's scheduler.
    ///
    /// # Errors
    /// Returns an error if the kernel has no sched_ext or already runs another sched_ext scheduler.
    /// Returns an error if the process may not load the BPF program, or if the kernel refuses the
    /// BPF program.
    pub fn start(plan: &Plan) -> Result<Self> {
        let state = state()?;
        ensure!(state == "disabled", "another sched_ext scheduler is {state}; end it first");
        let mut builder = ObjectBuilder::default();
        let open = builder.open_memory(PROGRAM).context("cannot open the BPF program")?;
        let object = open.load().context("the kernel refuses the BPF program (needs root)")?;
        let mut scheduler = Self { link: None, object, pinned: Vec::new() };
        scheduler.tell(plan)?;
        // The polls start before the scheduler is attached. From then on, this thread waits with
        // other threads for the processor, and only a poll ends another thread's turn of 30 ms.
        on_each_cpu(|| scheduler.start_poll())?;
        let mut maps = scheduler.object.maps_mut();
        let mut ops = maps
            .find(|map| map.name() == "penstock")
            .context("the BPF program has no struct_ops map `penstock`")?;
        let link = ops.attach_struct_ops().context("the kernel refuses the scheduler")?;
        drop(maps);
        scheduler.link = Some(link);
        Ok(scheduler)
    }

    /// Starts the BPF program's regular poll on the current processor.
    fn start_poll(&self) -> Result<()> {
        let mut found = self.object.progs_mut().find(|program| program.name() == "start_poll");
        let program = found.as_mut().context("the BPF object has no program start_poll")?;
        let output =
            program.test_run(ProgramInput::default()).context("the poll timer cannot start")?;
        ensure!(
            output.return_value == 0,
            "the BPF program cannot start its poll timer: error {}",
            output.return_value.cast_signed()
        );
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

    /// Removes a thread that has ended from the BPF maps, because the kernel may reuse the thread's
    /// number for another thread.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the update of a BPF map.
    pub fn forget(&self, tid: u32, seat: Option<u32>) -> Result<()> {
        if let Some(seat) = seat {
            let free = Place::FREE.encode();
            self.map("places")?.update(&seat.to_ne_bytes(), &free, MapFlags::ANY)?;
        }
        self.map("terms")?.delete(&tid.to_ne_bytes())?;
        Ok(())
    }

    /// Makes the scheduler stop dispatching threads, for tests.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the update of a BPF map.
    pub fn stall(&self) -> Result<()> {
        self.map("knobs")?.update(&[0; 4], &Knobs::encode(true), MapFlags::ANY)?;
        Ok(())
    }

    /// Returns the reason why the kernel has removed the scheduler. `None` if the scheduler still
    /// runs.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to read a BPF map.
    pub fn ended(&self) -> Result<Option<Ended>> {
        let knobs = self.map("knobs")?.lookup(&[0; 4], MapFlags::ANY)?;
        Ok(knobs.and_then(|bytes| Knobs::decode(&bytes)))
    }

    /// Reads the report of each thread of the plan, by thread number.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to read a BPF map.
    pub fn reports(&self) -> Result<Vec<(u32, Report)>> {
        read_reports(&self.map("reports")?)
    }

    /// Lets other processes read the scheduler's reports and deliver events. `folder` must be on a
    /// mounted bpffs.
    ///
    /// # Errors
    /// Returns an error if `folder` is not on a bpffs, or if the permission is missing.
    pub fn share(&mut self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        for name in SHARED {
            let path = folder.join(name);
            // A file of a killed loader may remain, although the loader's scheduler no longer runs.
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

/// Calls `run` once on every processor that the calling thread may use.
fn on_each_cpu(run: impl Fn() -> Result<()>) -> Result<()> {
    let me = Pid::from_raw(0);
    let before = sched_getaffinity(me)?;
    for cpu in 0..CpuSet::count() {
        if !before.is_set(cpu)? {
            continue;
        }
        let mut only = CpuSet::new();
        only.set(cpu)?;
        // Skips processors that are allowed but do not exist.
        if sched_setaffinity(me, &only).is_ok() {
            run().with_context(|| format!("cpu {cpu}"))?;
        }
    }
    Ok(sched_setaffinity(me, &before)?)
}

/// Reads the reports of a scheduler that runs in another process and shares its reports in
/// `folder`.
///
/// # Errors
/// Returns an error if no scheduler runs, or if the scheduler shares no reports in `folder`.
pub fn shared_reports(folder: &Path) -> Result<Vec<(u32, Report)>> {
    let path = folder.join("reports");
    let state = state()?;
    if state != "enabled" {
        bail!("no sched_ext scheduler runs ({state}); `penstock-vcpu-scx run` starts it");
    }
    let map = MapHandle::from_pinned_path(&path).with_context(|| {
        format!(
            "{}: the directory has no reports of a scheduler; correct `--share`",
            path.display()
        )
    })?;
    read_reports(&map)
}

fn read_reports(map: &impl MapCore) -> Result<Vec<(u32, Report)>> {
    let mut all = Vec::new();
    for key in map.keys() {
        let Some(bytes) = map.lookup(&key, MapFlags::ANY)? else { continue };
        let tid = u32::from_ne_bytes(key.as_slice().try_into().context("a report's key")?);
        all.push((
            tid,
            Report::decode(&bytes).context("the running scheduler has another version")?,
        ));
    }
    all.sort_unstable_by_key(|(tid, _)| *tid);
    Ok(all)
}
