//! Saved counts: what `Memory::save` writes and `MemoryBuilder::restore` reads.

mod beside_decisions;
mod clocks;
mod files;
mod keys;
mod kills;
mod limits;
mod many_keys;
mod world;
