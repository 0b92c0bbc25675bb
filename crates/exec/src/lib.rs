//! Devices and the loop that executes a plan.
