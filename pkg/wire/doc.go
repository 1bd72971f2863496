// Package wire maps the domain types of package render to the protobuf
// messages that are stored and sent, and back. It is the only place that knows
// both.
//
// From… never fails. To… fails on what this version cannot know the meaning
// of: an enum value of a newer version, a time out of range, a record without
// an id. The zero value, the empty string and the nil pointer of the domain
// are absence in protobuf; times come back in UTC.
//
// Enums map by name: the domain's "top_left" is POSITION_TOP_LEFT.
package wire
