//! Files with the minutes of all contracts, one for each day.
//!
//! A file has the name `contracts-DAY.tsv`; DAY is the number of days since 1970. Files older than
//! [`KEPT_DAYS`] days are removed, and the oldest files while all files together are larger than
//! [`KEPT_BYTES`]. If all earlier files are too old, the host was off or its clock jumped ahead. On
//! such a day, no file is removed because of its age. The present day's file is never removed. If
//! the size is the reason, the file [`REMOVED`] has the last removed day, so that a report can say
//! that minutes are missing. A line that is not whole or not text, for example after a power
//! failure, is skipped.
//!
//! # Labels
//!
//! A port may have labels of many kilobytes, which seldom change. A line has them only if the
//! port's line before in the file has other labels ([`Written`]). Each start of the daemon writes
//! them again. Files of earlier releases have all labels in each line, or none.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Minute, PortLabels};

/// Number of days for which minutes are kept.
pub const KEPT_DAYS: u64 = 30;
/// Limit on the size of all files, in bytes.
pub const KEPT_BYTES: u64 = 64 << 20;
/// File with the last day that was removed because of [`KEPT_BYTES`].
const REMOVED: &str = "contracts-removed";
const DAY: u64 = 86_400;

/// The labels that [`Store::add`] wrote to the present file since the start of the daemon.
#[derive(Debug, Default)]
pub struct Written {
    file: PathBuf,
    labels: BTreeMap<String, PortLabels>,
}

/// The files in one directory.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    limit: u64,
}

impl Store {
    /// Returns the store in the state directory `dir` of the daemon.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), limit: KEPT_BYTES }
    }

    #[cfg(test)]
    fn with_limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Adds minutes that end at the same time, and removes files that are too old or too large.
    /// `written` is the same at each call.
    ///
    /// # Errors
    /// Returns an error if the directory or a file cannot be written.
    pub fn add(&self, minutes: &[Minute], written: &mut Written) -> io::Result<()> {
        let Some(at) = minutes.first().map(|minute| minute.at) else { return Ok(()) };
        fs::create_dir_all(&self.dir)?;
        let path = self.file(at / DAY);
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(&path)?;
        // After an error, the file may lack lines, so that all labels are written again.
        let known = std::mem::take(written);
        let mut labels = BTreeMap::new();
        let mut lines = String::new();
        if known.file == path && file.metadata()?.len() > 0 {
            labels = known.labels;
        } else if !ends_with_line(&mut file)? {
            lines.push('\n');
        }
        for minute in minutes {
            let same = labels.get(&minute.port) == Some(&minute.labels);
            // Writing to a String cannot fail.
            let _ = minute.write(&mut lines, same);
            lines.push('\n');
            if !same {
                labels.insert(minute.port.clone(), Arc::clone(&minute.labels));
            }
        }
        file.write_all(lines.as_bytes())?;
        *written = Written { file: path, labels };
        self.prune(at / DAY)
    }

    /// Returns the end of the last day that was removed because all files together were too large,
    /// in seconds of Unix time. `None` if there is none.
    #[must_use]
    pub fn removed_until(&self) -> Option<u64> {
        let day = fs::read_to_string(self.dir.join(REMOVED)).ok()?.trim().parse::<u64>().ok()?;
        day.checked_add(1)?.checked_mul(DAY)
    }

    /// Calls `each` with each minute that ends at `since` or later, in the order of the files.
    ///
    /// # Errors
    /// Returns an error that names the file if a file cannot be read. A missing directory has no
    /// minutes.
    pub fn read(&self, since: u64, mut each: impl FnMut(Minute)) -> io::Result<()> {
        for (day, path) in self.files()? {
            if day < since / DAY {
                continue;
            }
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            let mut labels: BTreeMap<String, PortLabels> = BTreeMap::new();
            for line in BufReader::new(File::open(&path).map_err(named)?).split(b'\n') {
                let line = line.map_err(named)?;
                let Ok(line) = str::from_utf8(&line) else { continue };
                let Ok(minute) = Minute::read(line, &labels) else { continue };
                // Lines with equal labels share them, also in files of earlier releases.
                let minute = match labels.get(&minute.port) {
                    Some(known) if *known == minute.labels => {
                        Minute { labels: Arc::clone(known), ..minute }
                    }
                    _ => {
                        labels.insert(minute.port.clone(), Arc::clone(&minute.labels));
                        minute
                    }
                };
                if minute.at >= since {
                    each(minute);
                }
            }
        }
        Ok(())
    }

    fn file(&self, day: u64) -> PathBuf {
        self.dir.join(format!("contracts-{day}.tsv"))
    }

    /// Returns the days for which files exist, oldest first.
    fn files(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let day = name.strip_prefix("contracts-").and_then(|name| name.strip_suffix(".tsv"));
            if let Some(day) = day.and_then(|day| day.parse().ok()) {
                files.push((day, path));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn prune(&self, today: u64) -> io::Result<()> {
        let files = self.files()?;
        let mut sizes = Vec::new();
        for (_, path) in &files {
            sizes.push(fs::metadata(path)?.len());
        }
        let mut all: u64 = sizes.iter().sum();
        let is_old = |day: u64| day.saturating_add(KEPT_DAYS) <= today;
        let latest = files.iter().map(|(day, _)| *day).filter(|day| *day < today).max();
        let jumped = latest.is_none_or(is_old);
        for ((day, path), size) in files.into_iter().zip(sizes) {
            // The present day's file grows until the next day.
            let old = is_old(day) && !jumped;
            if day < today && (old || all > self.limit) {
                fs::remove_file(path)?;
                all -= size;
                if !old {
                    fs::write(self.dir.join(REMOVED), format!("{day}\n"))?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a file is empty or ends with a whole line.
fn ends_with_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use penstock_testing::{TempDir, temp_dir};

    use super::super::{Cause, Unit};
    use super::*;

    fn minute(at: u64) -> Minute {
        Minute {
            at,
            port: "vm1".into(),
            unit: Unit::Bits,
            bought: 1_000,
            got: 1_000,
            cause: Cause::Kept,
            class: 8,
            wait_max_us: 5,
            bound_us: None,
            labels: Default::default(),
        }
    }

    fn labelled(at: u64, labels: &[(&str, &str)]) -> Minute {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Minute { labels: Arc::new(labels.iter().map(owned).collect()), ..minute(at) }
    }

    fn all(store: &Store, since: u64) -> Vec<Minute> {
        let mut all = Vec::new();
        store.read(since, |minute| all.push(minute)).unwrap();
        all
    }

    fn times(store: &Store, since: u64) -> Vec<u64> {
        let mut times = Vec::new();
        store.read(since, |minute| times.push(minute.at)).unwrap();
        times
    }

    fn store() -> (TempDir, Store) {
        let dir = temp_dir();
        let store = Store::new(&dir.join("state"));
        (dir, store)
    }

    #[test]
    fn minutes_are_kept_for_a_month_and_found_by_time() {
        let (_dir, store) = store();
        assert_eq!(times(&store, 0), [0; 0], "nothing was written");
        for day in [0, 1, 29, 30] {
            let two = [minute(day * DAY + 60), minute(day * DAY + 60)];
            store.add(&two, &mut Written::default()).unwrap();
        }
        assert_eq!(times(&store, 0).len(), 6, "the first day is 30 days ago");
        assert_eq!(times(&store, 29 * DAY + 61), [30 * DAY + 60; 2]);
        // A power failure left a part of a line.
        let mut file = OpenOptions::new().append(true).open(store.file(30)).unwrap();
        file.write_all(b"2592120\tvm").unwrap();
        assert_eq!(times(&store, 30 * DAY).len(), 2);
        // The part of a line does not spoil the next line.
        store.add(&[minute(30 * DAY + 180)], &mut Written::default()).unwrap();
        assert_eq!(times(&store, 30 * DAY).len(), 3);
        // A defect of the disk left a line that is not text.
        let mut file = OpenOptions::new().append(true).open(store.file(30)).unwrap();
        file.write_all(b"\0\xff\xfe\n").unwrap();
        store.add(&[minute(30 * DAY + 240)], &mut Written::default()).unwrap();
        assert_eq!(times(&store, 30 * DAY).len(), 4);
        assert_eq!(store.removed_until(), None, "the first day was removed because of its age");
        // The error about a file that cannot be read names the file.
        fs::remove_file(store.file(29)).unwrap();
        fs::create_dir(store.file(29)).unwrap();
        let error = store.read(0, |_| ()).unwrap_err().to_string();
        assert!(error.contains("contracts-29.tsv: "), "{error}");
    }

    /// Tests a clock that is a year ahead for some minutes, for example at the start of the host.
    #[test]
    fn a_clock_that_jumps_ahead_costs_no_minutes() {
        let (_dir, store) = store();
        let written = &mut Written::default();
        let mut add = |at| store.add(&[minute(at)], written).unwrap();
        add(60);
        add(DAY + 60);
        add(366 * DAY + 60);
        add(366 * DAY + 120);
        add(DAY + 120);
        assert_eq!(times(&store, 0).len(), 5);
        // If the clock stays ahead, the next day removes the old files.
        add(367 * DAY + 60);
        assert_eq!(times(&store, 0), [366 * DAY + 60, 366 * DAY + 120, 367 * DAY + 60]);
        assert_eq!(store.removed_until(), None, "the files were removed because of their age");
    }

    #[test]
    fn the_oldest_days_make_room_for_the_present() {
        let (_dir, store) = store();
        let line = minute(60).to_string().len() as u64 + 1;
        let store = store.with_limit(2 * (line + 10));
        let written = &mut Written::default();
        for day in [0, 1, 2] {
            assert_eq!(store.removed_until(), None);
            store.add(&[minute(day * DAY + 60)], written).unwrap();
        }
        assert_eq!(times(&store, 0), [DAY + 60, 2 * DAY + 60]);
        assert_eq!(store.removed_until(), Some(DAY), "the answer says what is missing");
        // The present day remains, even if it is too large alone.
        let store = store.with_limit(1);
        store.add(&[minute(2 * DAY + 120)], written).unwrap();
        assert_eq!(times(&store, 0), [2 * DAY + 60, 2 * DAY + 120]);
        assert_eq!(store.removed_until(), Some(2 * DAY));
    }

    #[test]
    fn labels_are_stored_once_and_read_in_each_minute() {
        let (_dir, store) = store();
        let long = "x".repeat(255);
        let minutes = [
            labelled(60, &[("zone", &long)]),
            labelled(120, &[("zone", &long)]),
            labelled(180, &[("zone", &long)]),
            labelled(240, &[]),
            labelled(300, &[]),
            labelled(360, &[("zone", "b")]),
        ];
        let written = &mut Written::default();
        for minute in &minutes {
            store.add(std::slice::from_ref(minute), written).unwrap();
        }
        assert_eq!(all(&store, 0), minutes);
        assert_eq!(all(&store, 180), minutes[2..], "the labels are in an earlier line");
        let text = fs::read_to_string(store.file(0)).unwrap();
        assert_eq!(text.matches(&long).count(), 1, "{text}");
        // After a restart and on the next day, the labels are written again.
        let more = [labelled(420, &[("zone", "b")]), labelled(DAY + 60, &[("zone", "b")])];
        store.add(&more[..1], &mut Written::default()).unwrap();
        store.add(&more[1..], written).unwrap();
        fs::remove_file(store.file(0)).unwrap();
        assert_eq!(all(&store, 0), more[1..]);
    }

    #[test]
    fn files_with_all_labels_in_each_line_are_read() {
        let (dir, store) = store();
        let minutes =
            [labelled(60, &[("a", "1")]), labelled(120, &[("a", "1")]), labelled(180, &[])];
        let lines: Vec<String> = minutes.iter().map(|minute| format!("{minute}\n")).collect();
        fs::create_dir(dir.join("state")).unwrap();
        fs::write(store.file(0), lines.concat()).unwrap();
        assert_eq!(all(&store, 0), minutes);
        // The present program adds lines to such a file.
        let next = labelled(240, &[("a", "1")]);
        store.add(std::slice::from_ref(&next), &mut Written::default()).unwrap();
        assert_eq!(all(&store, 240), [next]);
    }
}
