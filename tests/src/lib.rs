<<<<<<< HEAD
//! What Tailwater's tests stand on: the fake disk, and whatever else several of them share.
#![forbid(unsafe_code)]

pub mod fakedisk;
=======
//! What Tailwater is tested with: the simulator, and what end-to-end tests share.
#![forbid(unsafe_code)]

pub mod sim;
>>>>>>> fanout
