//! The index of a store: key to object, in shards with a lock each. A key is hashed once per call.
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Enough that readers and writers on every core seldom meet.
const SHARDS: usize = 64;

/// What an index holds under its keys.
pub trait Indexed {
    /// Size of the object, bytes.
    fn object_len(&self) -> u64;
}

type Objects<T> = HashMap<StoredKey, Arc<T>, HashAsGiven>;

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
            hashing: RandomState::new(),
            shards: (0..SHARDS).map(|_| Shard(RwLock::default())).collect(),
            objects: AtomicU64::new(0),
            object_bytes: AtomicU64::new(0),
        }
    }
}

impl<T: Indexed> ObjectIndex<T> {
    /// The object under a key.
    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        let asked = self.hashed(key);
        self.shard(asked.hash).read().get(asked.as_dyn()).cloned()
    }

    /// Puts the object in place of the one before, if any, in one step.
    pub fn insert(&self, key: &str, object: Arc<T>) {
        let asked = self.hashed(key);
        let len = object.object_len();
        let mut objects = self.shard(asked.hash).write();
        let old = match objects.get_mut(asked.as_dyn()) {
            Some(slot) => Some(std::mem::replace(slot, object)),
            None => {
                let stored = StoredKey {
                    hash: asked.hash,
                    key: key.into(),
                };
                objects.insert(stored, object)
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
        let asked = self.hashed(key);
        let mut objects = self.shard(asked.hash).write();
        let old = objects.remove(asked.as_dyn())?;
        self.uncount(1, old.object_len());
        Some(old)
    }

    /// Takes out every object whose key starts with `prefix`; returns how many.
    pub fn remove_prefix(&self, prefix: &str) -> u64 {
        let mut removed = 0;
        for shard in &self.shards {
            let mut objects = shard.write();
            let gone: Vec<Arc<T>> = objects
                .extract_if(|stored, _| stored.key.starts_with(prefix))
                .map(|(_, object)| object)
                .collect();
            self.uncount(gone.len() as u64, gone.iter().map(|object| object.object_len()).sum());
            removed += gone.len() as u64;
        }
        removed
    }

    /// Shows every object once that is there from beginning to end. Writers wait for one shard at a time.
    pub fn each(&self, mut show: impl FnMut(&str, &T)) {
        for shard in &self.shards {
            shard
                .read()
                .iter()
                .for_each(|(stored, object)| show(&stored.key, object));
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

    fn hashed<'a>(&self, key: &'a str) -> AskedKey<'a> {
        AskedKey {
            hash: self.hashing.hash_one(key),
            key,
        }
    }

    /// By bits that the maps inside use for neither bucket nor tag, so that a shard's buckets fill evenly.
    fn shard(&self, hash: u64) -> &Shard<T> {
        &self.shards[(hash >> 40) as usize % SHARDS]
    }
}

impl<T> Shard<T> {
    /// Nothing panics between two changes that belong together, so a poisoned lock still protects a sound map.
    fn read(&self) -> RwLockReadGuard<'_, Objects<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key with its hash, as the maps keep it.
#[derive(Debug)]
struct StoredKey {
    hash: u64,
    key: Box<str>,
}

/// A key with its hash, as a call brings it.
struct AskedKey<'a> {
    hash: u64,
    key: &'a str,
}

/// What stored and asked keys have in common: lets a map be asked with a borrowed key that is hashed already.
trait HashedKey {
    fn hash_once(&self) -> u64;
    fn key(&self) -> &str;
}

impl HashedKey for StoredKey {
    fn hash_once(&self) -> u64 {
        self.hash
    }
    fn key(&self) -> &str {
        &self.key
    }
}

impl HashedKey for AskedKey<'_> {
    fn hash_once(&self) -> u64 {
        self.hash
    }
    fn key(&self) -> &str {
        self.key
    }
}

impl<'a> AskedKey<'a> {
    fn as_dyn(&self) -> &(dyn HashedKey + 'a) {
        self
    }
}

impl<'a> Borrow<dyn HashedKey + 'a> for StoredKey {
    fn borrow(&self) -> &(dyn HashedKey + 'a) {
        self
    }
}

impl Hash for dyn HashedKey + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash_once());
    }
}

impl PartialEq for dyn HashedKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.hash_once() == other.hash_once() && self.key() == other.key()
    }
}

impl Eq for dyn HashedKey + '_ {}

impl Hash for StoredKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for StoredKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.key == other.key
    }
}

impl Eq for StoredKey {}

/// Gives back the one number written to it: the keys come hashed.
#[derive(Clone, Debug, Default)]
struct HashAsGiven(u64);

impl BuildHasher for HashAsGiven {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for HashAsGiven {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        unreachable!("keys write their hash as one number, not {} bytes", bytes.len());
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
