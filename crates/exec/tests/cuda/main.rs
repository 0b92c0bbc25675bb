//! The CUDA device, run through the driver that is there: the one that the environment variable `PLIMSOLL_CUDA` names,
//! else the system's, else the stand-in, which checks every access and every order of streams. Says which.

mod faults;
mod machine;
mod plans;
mod products;
mod streams;
mod training;
