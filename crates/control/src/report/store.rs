//! Files with the minutes of all contracts, one for each day.
//!
//! A file has the name `contracts-DAY.tsv`; DAY is the number of days since 1970. Files older than
//! [`KEPT_DAYS`] days are removed, and the oldest files while all files together are larger than
//! [`KEPT_BYTES`]. A line that is not whole, for example after a power failure, is skipped.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use super::Minute;

/// Number of days for which minutes are kept.
pub const KEPT_DAYS: u64 = 30;
/// Limit on the size of all files, in bytes.
pub const KEPT_BYTES: u64 = 64 << 20;
const DAY: u64 = 86_400;

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
    ///
    /// # Errors
    /// Returns an error if the directory or a file cannot be written.
    pub fn add(&self, minutes: &[Minute]) -> io::Result<()> {
        let Some(at) = minutes.first().map(|minute| minute.at) else { return Ok(()) };
        fs::create_dir_all(&self.dir)?;
        let mut lines = String::new();
        for minute in minutes {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{minute}");
        }
        let mut file = OpenOptions::new().create(true).append(true).open(self.file(at / DAY))?;
        file.write_all(lines.as_bytes())?;
        self.prune(at / DAY)
    }

    /// Calls `each` with each minute that ends at `since` or later, in the order of the files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read. A missing directory has no minutes.
    pub fn read(&self, since: u64, mut each: impl FnMut(Minute)) -> io::Result<()> {
        for (day, path) in self.files()? {
            if day < since / DAY {
                continue;
            }
            for line in BufReader::new(fs::File::open(path)?).lines() {
                let minute = line?.parse::<Minute>().ok();
                minute.filter(|minute| minute.at >= since).into_iter().for_each(&mut each);
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
        for ((day, path), size) in files.into_iter().zip(sizes) {
            // The present day's file grows until the next day.
            if day < today && (day + KEPT_DAYS <= today || all > self.limit) {
                fs::remove_file(path)?;
                all -= size;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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

    fn times(store: &Store, since: u64) -> Vec<u64> {
        let mut times = Vec::new();
        store.read(since, |minute| times.push(minute.at)).unwrap();
        times
    }

    fn store(name: &str) -> (PathBuf, Store) {
        let name = format!("penstock-report-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&dir);
        (dir.clone(), Store::new(&dir))
    }

    #[test]
    fn minutes_are_kept_for_a_month_and_found_by_time() {
        let (dir, store) = store("month");
        assert_eq!(times(&store, 0), [0; 0], "nothing was written");
        for day in [0, 1, 29, 30] {
            store.add(&[minute(day * DAY + 60), minute(day * DAY + 60)]).unwrap();
        }
        assert_eq!(times(&store, 0).len(), 6, "the first day is 30 days ago");
        assert_eq!(times(&store, 29 * DAY + 61), [30 * DAY + 60; 2]);
        // A power failure left a part of a line.
        let mut file = OpenOptions::new().append(true).open(store.file(30)).unwrap();
        file.write_all(b"2592120\tvm").unwrap();
        assert_eq!(times(&store, 30 * DAY).len(), 2);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_oldest_days_make_room_for_the_present() {
        let (dir, store) = store("room");
        let line = minute(60).to_string().len() as u64 + 1;
        let store = store.with_limit(2 * (line + 10));
        for day in [0, 1, 2] {
            store.add(&[minute(day * DAY + 60)]).unwrap();
        }
        assert_eq!(times(&store, 0), [DAY + 60, 2 * DAY + 60]);
        fs::remove_dir_all(dir).unwrap();
    }
}
