// Package render is the domain of the farm: what a render is, what may happen
// to it, and what a client is told when something goes wrong. It is pure: no
// network, no clock, no files; every function is a function of its arguments.
//
// The gateway, the worker, the farm facade and the stores all speak these
// types. What is stored and sent is protobuf (module proto); package wire maps
// between the two.
package render
