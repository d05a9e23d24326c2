//! Batches: sessions that take as many tokens as there are, all at once. None is lost and none is given twice, and a
//! batch is smaller than wanted only where no whole token is left.

use std::sync::{Barrier, Mutex};
use std::thread;

use fastrand::Rng;
use postgres::{Client, Error, GenericClient};
use ratelimit_judge::{Asked, Recorder, Reply, Storage};

use crate::database::Database;
use crate::load::FOLDER;

const SESSIONS: usize = 16;
const CAPACITY: f64 = 20_000.0;

/// A batch: what is wanted, and the answer.
struct Batch {
    count: f64,
    at_least: f64,
    ok: bool,
    taken: f64,
    remaining: f64,
}

impl Batch {
    fn take(client: &mut impl GenericClient, name: &str, random: &mut Rng) -> Result<Batch, Error> {
        let count = f64::from(random.u32(1..=60));
        let at_least = if random.bool() { 1.0 } else { (count / 2.0).max(1.0) };
        let take = "SELECT ok, taken, remaining FROM rl_take($1, 'k', $2, $3)";
        let row = client.query_one(take, &[&name, &count, &at_least])?;
        let (ok, taken, remaining) = (row.get(0), row.get(1), row.get(2));
        Ok(Batch { count, at_least, ok, taken, remaining })
    }

    /// Checks the answer on its own: of a limit in rows, `remaining` is what its transaction sees.
    fn check(&self) {
        let &Batch { count, at_least, ok, taken, remaining } = self;
        assert_eq!(taken.fract(), 0.0);
        match ok {
            false => assert_eq!(taken, 0.0),
            true => {
                assert!((at_least..=count).contains(&taken), "{taken}: {at_least}..{count}")
            }
        }
        assert!(!ok || taken == count || remaining < 1.0, "{taken} of {count}, {remaining} left");
    }

    /// The take of a count that it is, for the judge.
    fn call(&self, storage: Storage) -> (u32, Asked, Option<i64>, Reply) {
        let count = if self.ok { self.taken } else { self.at_least.ceil() };
        let remaining = Some(self.remaining).filter(|_| storage != Storage::Shards);
        let reply = Reply { ok: self.ok, remaining, retry_at: None };
        (0, Asked::Limit { count, reserve: false }, None, reply)
    }
}

/// Has sessions take until nothing is left, some of whose transactions are rolled back; and then takes what these gave
/// back. Together that is the capacity.
fn drain(name: &'static str, storage: Storage, more: &str) {
    let database = Database::new(name);
    let config = format!(
        r#"{{"kind": "token bucket", "rate": 1, "period": "365 days", "capacity": {CAPACITY}{more}}}"#
    );
    let mut client = database.connect();
    client.execute("SELECT rl_define('batches', $1::text::jsonb)", &[&config]).unwrap();
    let (recorder, total) = (Recorder::new(), Mutex::new(0.0));
    recorder.key("batches", "k", &config, storage);
    let ready = Barrier::new(SESSIONS);
    thread::scope(|scope| {
        for session in 0..SESSIONS {
            let (database, total, ready) = (&database, &total, &ready);
            let mut recording = recorder.session();
            scope.spawn(move || {
                let (mut client, mut random) = (database.connect(), Rng::with_seed(session as u64));
                ready.wait();
                loop {
                    let mut transaction = client.transaction().unwrap();
                    recording.begin();
                    let batch = recording
                        .call(
                            || Batch::take(&mut transaction, "batches", &mut random),
                            |batch| vec![batch.call(storage)],
                        )
                        .unwrap();
                    batch.check();
                    let keeps = random.u8(..4) > 0;
                    match keeps {
                        true => recording.commit(|| transaction.commit()).unwrap(),
                        false => recording.roll_back(|| transaction.rollback()).unwrap(),
                    }
                    if keeps || storage == Storage::Memory {
                        *total.lock().unwrap() += batch.taken;
                    }
                    if !batch.ok && batch.at_least == 1.0 {
                        break;
                    }
                }
            });
        }
    });
    let mut total = total.into_inner().unwrap();
    total += rest(&mut client);
    assert_eq!(total, CAPACITY);
    println!("{}", recorder.judge(FOLDER.as_ref(), "refused-batches").unwrap());
}

/// Takes what is left.
fn rest(client: &mut Client) -> f64 {
    let take = "SELECT ok, taken FROM rl_take('batches', 'k', 1e15, 0)";
    let row = client.query_one(take, &[]).unwrap();
    assert!(row.get::<_, bool>(0));
    let again = client.query_one(take, &[]).unwrap();
    assert_eq!(again.get::<_, f64>(1), 0.0);
    row.get(1)
}

#[test]
#[ignore = "needs a server: make test"]
fn batches_share_out_a_row() {
    drain("batches", Storage::Row, "");
}

#[test]
#[ignore = "needs a server: make test"]
fn batches_share_out_a_limit_with_shards() {
    drain("batches_shards", Storage::Shards, r#", "shards": 8"#);
}

#[test]
#[ignore = "needs a server: make test"]
fn batches_share_out_a_limit_in_memory() {
    drain("batches_memory", Storage::Memory, r#", "store": "memory""#);
}
