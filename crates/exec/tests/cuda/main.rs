//! The CUDA device with the available driver: the one that the environment variable `PLIMSOLL_CUDA` names, else the
//! system's, else the stand-in, which checks every access and every order of streams. Prints which one it is.

mod exchange;
mod faults;
mod machine;
mod plans;
mod products;
mod streams;
mod training;
