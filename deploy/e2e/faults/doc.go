// Package faults kills and stops the programs of a farm at each step that
// package failpoint names, and looks at what becomes of the renders. The
// programs are built with the tag failpoint and run as processes.
package faults
