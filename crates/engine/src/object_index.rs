//! The index of a store: key to object, in shards with a lock each. A key is hashed once per call.
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Enough that readers and writers on every core seldom meet.
const SHARDS: usize = 64;

/// What an index holds under its keys.
pub trait Indexed {
    /// Size of the object, bytes.
    fn object_len(&self) -> u64;
}

type Objects<T> = HashTable<Stored<T>>;

#[derive(Debug)]
struct Stored<T> {
    hash: u64,
    key: Box<str>,
    object: Arc<T>,
}

impl<T> Stored<T> {
    fn is(&self, hash: u64, key: &str) -> bool {
        self.hash == hash && *self.key == *key
    }
}

/// Kept on cache lines of its own, so that a lock taken on one core does not slow its neighbour's.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T>(RwLock<Objects<T>>);

/// Key to object. Calls may run from any thread; what an object holds is given back when the last of its users lets go of it.
#[derive(Debug)]
pub struct ObjectIndex<T> {
    /// Seeded at random, so that nobody can choose keys that all fall into one bucket.
    hashing: RandomState,
    shards: Vec<Shard<T>>,
    objects: AtomicU64,
    object_bytes: AtomicU64,
}

impl<T> Default for ObjectIndex<T> {
    fn default() -> Self {
        Self {
            hashing: RandomState::default(),
            shards: (0..SHARDS).map(|_| Shard(RwLock::new(HashTable::new()))).collect(),
            objects: AtomicU64::new(0),
            object_bytes: AtomicU64::new(0),
        }
    }
}

impl<T: Indexed> ObjectIndex<T> {
    /// The object under a key.
    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        let hash = self.hashing.hash_one(key);
        let objects = self.shard(hash).read();
        let stored = objects.find(hash, |stored| stored.is(hash, key))?;
        Some(Arc::clone(&stored.object))
    }

    /// Puts the object in place of the one before, if any, in one step.
    pub fn insert(&self, key: &str, object: Arc<T>) {
        let hash = self.hashing.hash_one(key);
        let len = object.object_len();
        let mut objects = self.shard(hash).write();
        let old = match objects.entry(hash, |stored| stored.is(hash, key), |stored| stored.hash) {
            Entry::Occupied(stored) => Some(std::mem::replace(&mut stored.into_mut().object, object)),
            Entry::Vacant(free) => {
                let key = key.into();
                free.insert(Stored { hash, key, object });
                None
            }
        };
        // Counted under the shard's lock: a removal of this object can't be counted before it.
        self.objects.fetch_add(1, Relaxed);
        self.object_bytes.fetch_add(len, Relaxed);
        if let Some(old) = &old {
            self.uncount(1, old.object_len());
        }
        drop(objects);
        // The old object's memory is given back here, outside the lock.
        drop(old);
    }

    /// Takes an object out.
    pub fn remove(&self, key: &str) -> Option<Arc<T>> {
        let hash = self.hashing.hash_one(key);
        let mut objects = self.shard(hash).write();
        let found = objects.find_entry(hash, |stored| stored.is(hash, key)).ok()?;
        let old = found.remove().0.object;
        self.uncount(1, old.object_len());
        Some(old)
    }

    /// Takes out every object whose key starts with `prefix`; returns how many.
    pub fn remove_prefix(&self, prefix: &str) -> u64 {
        let mut removed = 0;
        for shard in &self.shards {
            let mut objects = shard.write();
            let gone: Vec<Arc<T>> = objects
                .extract_if(|stored| stored.key.starts_with(prefix))
                .map(|stored| stored.object)
                .collect();
            self.uncount(gone.len() as u64, gone.iter().map(|object| object.object_len()).sum());
            removed += gone.len() as u64;
        }
        removed
    }

    /// Shows every object once that is there from beginning to end. Writers wait for one shard at a time.
    pub fn each(&self, mut show: impl FnMut(&str, &T)) {
        for shard in &self.shards {
            shard.read().iter().for_each(|stored| show(&stored.key, &stored.object));
        }
    }

    /// Objects held now.
    pub fn objects(&self) -> u64 {
        self.objects.load(Relaxed)
    }

    /// Bytes of the objects held now.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes.load(Relaxed)
    }

    fn uncount(&self, objects: u64, bytes: u64) {
        self.objects.fetch_sub(objects, Relaxed);
        self.object_bytes.fetch_sub(bytes, Relaxed);
    }

    /// By bits that the tables inside use for neither bucket nor tag, so that a shard's buckets fill evenly.
    fn shard(&self, hash: u64) -> &Shard<T> {
        &self.shards[(hash >> 40) as usize % SHARDS]
    }
}

impl<T> Shard<T> {
    /// Nothing panics between two changes that belong together, so a poisoned lock still protects a sound table.
    fn read(&self) -> RwLockReadGuard<'_, Objects<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
