//! Reads and writes the store's database file. Each transaction of the store is one transaction of
//! `redb`.

use std::collections::BTreeMap;
use std::fs::{File as Handle, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{
    CommitError, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError, TransactionError, WriteTransaction,
};

use super::super::contract::{Entry, LeaseId, Revision, StoreError};
use super::state::{Batch, Held};

/// Table that maps a key to the revisions of its creation and last write, its lease (0 for none)
/// and its value.
const ENTRIES: TableDefinition<&str, (u64, u64, i64, &[u8])> = TableDefinition::new("entries");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const REVISION: &str = "revision";
const FORMAT: &str = "format";
/// Version of the file's format, which increases with a change that older versions of Penstock
/// would misread.
const FORMAT_NOW: u64 = 1;
/// Size of redb's page cache in bytes. The cache is small because the store answers reads from
/// memory.
const CACHE_BYTES: usize = 8 << 20;

/// Contents of the database file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) revision: u64,
    pub(super) entries: BTreeMap<String, Held>,
}

/// Function that opens a database. Tests replace the opening function to inject faults.
pub(super) type Opener = Box<dyn Fn(&Path) -> Result<Database, DatabaseError> + Send>;

/// Database file, which only this process uses.
pub(super) struct File {
    path: PathBuf,
    name: String,
    opener: Opener,
    /// Open database of redb, or `None` between a disk fault and the next opening of the file.
    database: Option<Database>,
}

impl File {
    /// Opens the database file or creates an empty file, and reads all contents.
    pub(super) fn open(path: &Path, opener: Opener) -> Result<(Self, Content), StoreError> {
        let name = path.display().to_string();
        let mut file = Self { path: path.to_owned(), name, opener, database: None };
        let content = file.reopen()?;
        Ok((file, content))
    }

    /// Makes a batch of changes durable in the file. The function `before` returns the store's
    /// contents before the batch of changes.
    ///
    /// After an error, the batch of changes is not part of the store, but may already be on the
    /// disk. The next write first removes the failed batch of changes from the file. If the program
    /// ends before the next write, the failed batch may be part of the store after the restart.
    pub(super) fn write(
        &mut self,
        batch: &Batch,
        before: impl Fn() -> Content,
    ) -> Result<(), StoreError> {
        if self.database.is_none() {
            let content = self.reopen()?;
            let before = before();
            // The failed write had reached the disk, although the caller got an error. The write is
            // not in memory, so the file gets the contents of the memory.
            if content.revision != before.revision {
                self.replace(&before)?;
            }
        }
        self.transaction(|transaction| batch.write(transaction))
    }

    fn reopen(&mut self) -> Result<Content, StoreError> {
        let database = (self.opener)(&self.path).map_err(|error| self.cannot_open(error))?;
        self.database = Some(database);
        self.transaction(|transaction| {
            transaction.open_table(ENTRIES)?;
            let mut meta = transaction.open_table(META)?;
            if meta.get(FORMAT)?.is_none() {
                meta.insert(FORMAT, FORMAT_NOW)?;
                meta.insert(REVISION, 0)?;
            }
            Ok(())
        })?;
        self.read()
    }

    fn replace(&mut self, content: &Content) -> Result<(), StoreError> {
        self.transaction(|transaction| {
            transaction.delete_table(ENTRIES)?;
            let mut entries = transaction.open_table(ENTRIES)?;
            for held in content.entries.values() {
                entries.insert(held.entry.key.as_str(), row(held))?;
            }
            transaction.open_table(META)?.insert(REVISION, content.revision)?;
            Ok(())
        })
    }

    fn read(&mut self) -> Result<Content, StoreError> {
        let database = self.database.as_ref().ok_or_else(|| self.unavailable("is closed"))?;
        let read = || -> Result<(u64, Content), Fault> {
            let transaction = database.begin_read()?;
            let meta = transaction.open_table(META)?;
            let number = |key| meta.get(key).map(|found| found.map_or(0, |found| found.value()));
            let mut content = Content { revision: number(REVISION)?, entries: BTreeMap::new() };
            for row in transaction.open_table(ENTRIES)?.iter()? {
                let (key, row) = row?;
                let held = held(key.value(), row.value());
                content.entries.insert(held.entry.key.clone(), held);
            }
            Ok((number(FORMAT)?, content))
        };
        let (format, content) = read().map_err(|fault| self.fault(&fault))?;
        if format != FORMAT_NOW {
            return Err(self.damaged(&format!(
                "the file has format {format}, and this program reads {FORMAT_NOW}; \
                 use the program that wrote it"
            )));
        }
        Ok(content)
    }

    fn transaction(
        &mut self,
        write: impl FnOnce(&WriteTransaction) -> Result<(), Fault>,
    ) -> Result<(), StoreError> {
        let database = self.database.as_ref().ok_or_else(|| self.unavailable("is closed"))?;
        let attempt = || -> Result<(), Fault> {
            let mut transaction = database.begin_write()?;
            // With two phases, the primary copy is always complete and needs no checksum.
            transaction.set_two_phase_commit(true);
            write(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        let done = attempt();
        done.map_err(|fault| {
            self.database = None;
            self.fault(&fault)
        })
    }

    fn fault(&self, Fault(fault): &Fault) -> StoreError {
        match fault {
            redb::Error::Corrupted(what) => self.damaged(what),
            redb::Error::Io(error) => self.unavailable(&io_problem(error)),
            redb::Error::Backend(error) => match error.downcast_ref::<io::Error>() {
                Some(error) => self.unavailable(&io_problem(error)),
                None => self.unavailable(&error.to_string()),
            },
            other => self.unavailable(&other.to_string()),
        }
    }

    fn cannot_open(&self, error: DatabaseError) -> StoreError {
        match error {
            DatabaseError::DatabaseAlreadyOpen => self.unavailable(
                "another program has the file open; stop that program or name another file \
                 (several controllers must share an etcd cluster)",
            ),
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() == io::ErrorKind::InvalidData =>
            {
                self.damaged(&format!("the file is not a store ({error})"))
            }
            DatabaseError::UpgradeRequired(version) => {
                self.damaged(&format!("version {version} of redb's file format is too old"))
            }
            DatabaseError::RepairAborted => self.damaged("its repair was interrupted"),
            other => self.fault(&Fault(other.into())),
        }
    }

    fn unavailable(&self, problem: &str) -> StoreError {
        StoreError::Unavailable { store: self.name.clone(), problem: problem.to_owned() }
    }

    fn damaged(&self, problem: &str) -> StoreError {
        StoreError::Damaged { store: self.name.clone(), problem: problem.to_owned() }
    }
}

impl Batch {
    fn write(&self, transaction: &WriteTransaction) -> Result<(), Fault> {
        let mut entries = transaction.open_table(ENTRIES)?;
        for (key, held) in &self.writes {
            match held {
                Some(held) => drop(entries.insert(key.as_str(), row(held))?),
                None => drop(entries.remove(key.as_str())?),
            }
        }
        transaction.open_table(META)?.insert(REVISION, self.revision)?;
        Ok(())
    }
}

fn row(held: &Held) -> (u64, u64, i64, &[u8]) {
    let Held { entry, lease } = held;
    (entry.created.0, entry.modified.0, lease.map_or(0, |lease| lease.0), &entry.value)
}

fn held(key: &str, (created, modified, lease, value): (u64, u64, i64, &[u8])) -> Held {
    let (created, modified) = (Revision(created), Revision(modified));
    Held {
        entry: Entry { key: key.to_owned(), value: value.to_vec(), created, modified },
        lease: (lease != 0).then_some(LeaseId(lease)),
    }
}

/// Opens a database file with access for its owner only, and makes the file's directory entry
/// durable.
pub(super) fn open_database(path: &Path) -> Result<Database, DatabaseError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Handle::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    builder().create_with_backend(FileBackend::new(file)?)
}

/// Returns the settings with which redb opens a database. Tests use the same redb settings with a
/// simulated disk.
pub(super) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    // Without this check, redb returns the contents of damaged pages.
    builder.set_check_integrity_on_open(true);
    builder
}

fn io_problem(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free disk space, then repeat the write; earlier writes are kept"
        }
        io::ErrorKind::PermissionDenied => "; permit this user to read and write the file",
        io::ErrorKind::NotFound => "; create its directory",
        _ => "; check the disk with dmesg, then repeat the request",
    };
    format!("{error}{remedy}")
}

/// Any error of the database library redb.
pub(super) struct Fault(redb::Error);

macro_rules! faults {
    ($($error:ty),*) => {
        $(impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Self(error.into())
            }
        })*
    };
}
faults!(TransactionError, TableError, StorageError, CommitError);
