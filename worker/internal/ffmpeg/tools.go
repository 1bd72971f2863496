// Package ffmpeg runs ffmpeg and ffprobe, and nothing else in the worker does.
//
// Every input of every run carries the flags that keep hostile media in its
// place; every run has its own process group, limits, a bounded log and, where
// wanted, a watchdog. That a run ended with exit code 0 says little (a stopped
// mp4 is valid but short), so callers check what was made.
package ffmpeg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/worker/internal/sandbox"
)

// Tools are an installed ffmpeg and ffprobe, and what they can do. It is safe
// for concurrent use once made.
type Tools struct {
	// FFmpeg and FFprobe are the paths of the programs.
	FFmpeg, FFprobe string
	// Version is ffmpeg's own word, such as 5.1.9-0+deb12u1. Major and Minor
	// are 0 for a build from git.
	Version      string
	Major, Minor int
	// Limits of each child process.
	Limits sandbox.Limits
	// Grace is how long a run may take to end after SIGTERM before its
	// process group is killed.
	Grace time.Duration

	encoders, filters, muxers map[string]bool
}

// DefaultGrace is the time between SIGTERM and SIGKILL.
const DefaultGrace = 5 * time.Second

// findTimeout bounds each question to the programs at start.
const findTimeout = 20 * time.Second

// Find looks for ffmpeg and ffprobe in PATH and asks what they can do.
func Find(ctx context.Context) (*Tools, error) {
	ffmpeg, err := exec.LookPath("ffmpeg")
	if err != nil {
		return nil, fmt.Errorf("find ffmpeg: %w", err)
	}
	ffprobe, err := exec.LookPath("ffprobe")
	if err != nil {
		return nil, fmt.Errorf("find ffprobe: %w", err)
	}
	return Open(ctx, ffmpeg, ffprobe)
}

// Open asks the programs at these paths what they can do.
func Open(ctx context.Context, ffmpeg, ffprobe string) (*Tools, error) {
	t := &Tools{FFmpeg: ffmpeg, FFprobe: ffprobe, Limits: sandbox.DefaultLimits(), Grace: DefaultGrace}
	version, err := t.ask(ctx, t.FFmpeg, "-version")
	if err != nil {
		return nil, err
	}
	if t.Version, t.Major, t.Minor, err = parseVersion(version); err != nil {
		return nil, err
	}
	if _, err := t.ask(ctx, t.FFprobe, "-version"); err != nil {
		return nil, err
	}
	for flag, into := range map[string]*map[string]bool{"-encoders": &t.encoders, "-filters": &t.filters, "-muxers": &t.muxers} {
		out, err := t.ask(ctx, t.FFmpeg, "-hide_banner", flag)
		if err != nil {
			return nil, err
		}
		*into = parseList(out)
	}
	return t, nil
}

// HasEncoder reports whether the build lists the encoder. A listed hardware
// encoder proves nothing about this machine.
func (t *Tools) HasEncoder(name string) bool { return t.encoders[name] }

// HasFilter reports whether the build lists the filter.
func (t *Tools) HasFilter(name string) bool { return t.filters[name] }

// HasMuxer reports whether the build lists the muxer.
func (t *Tools) HasMuxer(name string) bool { return t.muxers[name] }

func (t *Tools) ask(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	var out bytes.Buffer
	if _, err := t.run(ctx, process{program: program, name: args[len(args)-1], args: args, stdout: &out}); err != nil {
		return "", fmt.Errorf("ask %s what it can do: %w", program, err)
	}
	return out.String(), nil
}

var versionPattern = regexp.MustCompile(`^ffmpeg version (\S+)`)

// parseVersion reads the first line of `ffmpeg -version`.
func parseVersion(out string) (version string, major, minor int, err error) {
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return "", 0, 0, errors.New("parse ffmpeg version: unknown output")
	}
	numbers := regexp.MustCompile(`^n?(\d+)\.(\d+)`).FindStringSubmatch(m[1])
	if numbers == nil { // a build from git, such as N-109542-g1bf1d7f
		return m[1], 0, 0, nil
	}
	if major, err = strconv.Atoi(numbers[1]); err == nil {
		minor, err = strconv.Atoi(numbers[2])
	}
	if err != nil {
		return "", 0, 0, fmt.Errorf("parse ffmpeg version %q: %w", m[1], err)
	}
	return m[1], major, minor, nil
}

// parseList reads the names out of `ffmpeg -encoders`, `-filters` or
// `-muxers`: a legend, then lines of flags, name and description. A name may
// be a list with commas.
func parseList(out string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 || f[1] == "=" || strings.HasSuffix(f[0], ":") {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			names[name] = true
		}
	}
	return names
}
