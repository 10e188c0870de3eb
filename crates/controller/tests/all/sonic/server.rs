//! Runs a redis for one test, and a test double of SONiC's orchagent, which reads the configuration
//! from redis.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use penstock_controller::southbound::sonic::Endpoint;
use penstock_testing::{TempDir, temp_dir};
use redis::aio::MultiplexedConnection;
use tokio_stream::StreamExt;

/// Running `redis-server` on a Unix socket in its own directory. Dropping the [`Redis`] stops the
/// server and removes its directory.
pub struct Redis {
    directory: TempDir,
    server: Child,
}

impl Redis {
    /// Starts redis with one configured switch port. If redis-server is not installed, records a
    /// skip and returns `None`.
    pub async fn start() -> Option<Self> {
        let directory = temp_dir();
        let server = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket"])
            .arg(directory.join("sock"))
            // As in SONiC: key-space notifications, and nothing on disk.
            .args(["--save", "", "--notify-keyspace-events", "KEA", "--dir"])
            .arg(directory.as_os_str())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut server) = server else {
            penstock_testing::skip("redis-server is not installed (scripts/setup.sh test)");
            return None;
        };
        let out = BufReader::new(server.stdout.take().expect("piped"));
        let this = Self { directory, server };
        let ready = |line: &String| line.to_lowercase().contains("ready to accept connections");
        assert!(out.lines().map_while(Result::ok).any(|line| ready(&line)), "redis-server ends");
        this.set("PORT|Ethernet0", &[("lanes", "0"), ("speed", "10000")]).await;
        this.set("PORT|Ethernet4", &[("lanes", "4"), ("speed", "10000")]).await;
        Some(this)
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.directory.join("sock"))
    }

    fn client(&self, database: u8) -> redis::Client {
        let socket = self.directory.join("sock");
        let url = format!("redis+unix://{}?db={database}", socket.display());
        redis::Client::open(url).expect("an address")
    }

    /// Opens a connection to a database of redis.
    pub async fn connect(&self, database: u8) -> MultiplexedConnection {
        self.client(database).get_multiplexed_async_connection().await.expect("it listens")
    }

    /// Sets fields of a key of CONFIG_DB, as an operator would.
    pub async fn set(&self, key: &str, fields: &[(&str, &str)]) {
        let mut connection = self.connect(4).await;
        let set = redis::cmd("HSET").arg(key).arg(fields).query_async::<()>(&mut connection).await;
        set.expect("set");
    }

    /// Makes redis require a password.
    pub async fn require(&self, password: &str) {
        let mut connection = self.connect(4).await;
        let set = redis::cmd("CONFIG").arg(&["SET", "requirepass", password]).to_owned();
        set.query_async::<()>(&mut connection).await.expect("set");
    }

    /// Returns the fields of a key in a database of redis.
    pub async fn hash(&self, database: u8, key: &str) -> BTreeMap<String, String> {
        let mut connection = self.connect(database).await;
        redis::cmd("HGETALL").arg(key).query_async(&mut connection).await.expect("a hash")
    }

    /// Returns all keys and fields of CONFIG_DB.
    pub async fn all(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut connection = self.connect(4).await;
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut connection).await.expect("keys");
        let mut all = BTreeMap::new();
        for key in keys {
            let fields = redis::cmd("HGETALL").arg(&key).query_async(&mut connection).await;
            all.insert(key, fields.expect("a hash"));
        }
        all
    }

    /// Starts a test double of SONiC's orchagent, which reads the switch's configuration from
    /// redis. Redis notifies the test double of each written key of CONFIG_DB. The test double
    /// reads each written key, and sets the counters of each queue with a scheduler. The test
    /// double ends when a test writes the key `DONE`, and returns all written keys in order.
    pub async fn switch(&self) -> tokio::task::JoinHandle<Vec<String>> {
        let mut events = self.client(4).get_async_pubsub().await.expect("it listens");
        events.psubscribe("__keyspace@4__:*").await.expect("subscribed");
        let (mut config, mut counters) = (self.connect(4).await, self.connect(2).await);
        tokio::spawn(async move {
            let mut heard = Vec::new();
            let mut events = events.on_message();
            while let Some(event) = events.next().await {
                let key = event.get_channel_name().trim_start_matches("__keyspace@4__:").to_owned();
                if key == "DONE" {
                    break;
                }
                if let Some((_, queue)) =
                    key.split_once("QUEUE|").filter(|(table, _)| table.is_empty())
                {
                    let entry: BTreeMap<String, String> = redis::cmd("HGETALL")
                        .arg(&key)
                        .query_async(&mut config)
                        .await
                        .expect("read");
                    assert!(entry.contains_key("scheduler"), "{key}: {entry:?}");
                    count(&mut counters, &queue.replace('|', ":")).await;
                }
                heard.push(key);
            }
            heard
        })
    }
}

/// Sets a queue's counters, as if the queue with number N had sent N packets of 100 bytes each.
async fn count(counters: &mut MultiplexedConnection, queue: &str) {
    let number: u64 = queue.rsplit(':').next().expect("a queue").parse().expect("a number");
    let oid = format!("oid:0x15{:x}", queue.len() as u64 * 1000 + number);
    let oid = format!("{oid}{}", queue.bytes().map(u64::from).sum::<u64>());
    let mut pipe = redis::pipe();
    pipe.cmd("HSET").arg("COUNTERS_QUEUE_NAME_MAP").arg(queue).arg(&oid);
    pipe.cmd("HSET").arg(format!("COUNTERS:{oid}")).arg(&[
        ("SAI_QUEUE_STAT_PACKETS", number.to_string()),
        ("SAI_QUEUE_STAT_BYTES", (number * 100).to_string()),
        ("SAI_QUEUE_STAT_DROPPED_PACKETS", "7".to_owned()),
        ("SAI_QUEUE_STAT_DROPPED_BYTES", "700".to_owned()),
    ]);
    pipe.query_async::<()>(counters).await.expect("counted");
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
