package render

import "strconv"

// Key is the work's name in subjects and keys,
// <tenant>.<owner>.<generation>.<stage>.<index>. ok is false when a part of it
// does not match its pattern: such a work exists nowhere, and nothing may be
// asked or written in its name.
func (w Work) Key() (key string, ok bool) {
	switch w.Stage {
	case StageProbe:
		_, ok = ParseAssetID(string(w.Asset))
	case StagePreview, StagePlan, StageSegment, StageAudio, StageAssemble:
		_, ok = ParseID(string(w.Task))
	}
	if !ok || w.Index < 0 {
		return "", false
	}
	return w.Tenant.Key() + "." + w.Owner() + "." + strconv.FormatUint(uint64(w.Generation), 10) + "." + string(w.Stage) + "." + strconv.Itoa(w.Index), true
}
