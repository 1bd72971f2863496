package wire

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Marshal encodes a message. Protobuf refuses text that is not UTF-8, which a
// header, a file's name or an encoder's last words may hold: such text is
// stored with U+FFFD in place of what is broken, instead of losing the record.
func Marshal(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	if err == nil {
		return b, nil
	}
	m = proto.Clone(m)
	if err := protorange.Range(m.ProtoReflect(), repairText); err != nil {
		return nil, fmt.Errorf("wire: repair text of %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	if b, err = proto.Marshal(m); err != nil {
		return nil, fmt.Errorf("wire: encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return b, nil
}

// repairText replaces a broken string where the walk stands: in a field or in
// an element of a list.
func repairText(p protopath.Values) error {
	at := p.Index(-1)
	s, ok := at.Value.Interface().(string)
	if !ok || utf8.ValidString(s) {
		return nil
	}
	v := protoreflect.ValueOfString(strings.ToValidUTF8(s, string(utf8.RuneError)))
	switch parent := p.Index(-2).Value; at.Step.Kind() {
	case protopath.FieldAccessStep:
		parent.Message().Set(at.Step.FieldDescriptor(), v)
	case protopath.ListIndexStep:
		parent.List().Set(at.Step.ListIndex(), v)
	default:
		return fmt.Errorf("text in %v", at.Step)
	}
	return nil
}

// CarryUnknown adds the fields of src that this version does not know to dst,
// so that a record survives being read, changed and written by an older
// version than the one that made it. It descends into singular messages that
// both have; elements of lists have no identity and keep only what dst says.
// Both must be of the same message type.
func CarryUnknown(dst, src proto.Message) {
	carryUnknown(dst.ProtoReflect(), src.ProtoReflect())
}

func carryUnknown(dst, src protoreflect.Message) {
	if u := src.GetUnknown(); len(u) > 0 {
		dst.SetUnknown(append(dst.GetUnknown(), u...))
	}
	src.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() != nil && !fd.IsList() && !fd.IsMap() && dst.Has(fd) {
			carryUnknown(dst.Mutable(fd).Message(), v.Message())
		}
		return true
	})
}

// decoder keeps the first error of a conversion, so that mappings read as
// lists of fields.
type decoder struct{ err error }

func (d *decoder) failf(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("wire: "+format, args...)
	}
}

func (d *decoder) time(field string, t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	if err := t.CheckValid(); err != nil {
		d.failf("%s: %w", field, err)
		return time.Time{}
	}
	return t.AsTime()
}

func (d *decoder) duration(field string, v *durationpb.Duration) time.Duration {
	if v == nil {
		return 0
	}
	if err := v.CheckValid(); err != nil {
		d.failf("%s: %w", field, err)
		return 0
	}
	return v.AsDuration()
}

func fromTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func fromDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// fromInt narrows what is small by nature (pixels, counts, indexes).
func fromInt(n int) int32 {
	return int32(max(math.MinInt32, min(n, math.MaxInt32)))
}

// enumPrefix is what the names of an enum's values start with, such as STATE_.
func enumPrefix(e protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

// fromEnum is the enum value of a domain constant, UNSPECIFIED for "" and for
// what is no constant.
func fromEnum[P interface {
	~int32
	protoreflect.Enum
}, D ~string](v D) P {
	var none P
	if v == "" {
		return none
	}
	e := none.Descriptor()
	ev := e.Values().ByName(protoreflect.Name(enumPrefix(e) + strings.ToUpper(string(v))))
	if ev == nil {
		return none
	}
	return P(ev.Number())
}

// toEnum is the domain constant of an enum value, "" for UNSPECIFIED.
func toEnum[D ~string, P protoreflect.Enum](d *decoder, field string, v P) D {
	if v.Number() == 0 {
		return ""
	}
	e := v.Descriptor()
	ev := e.Values().ByNumber(v.Number())
	if ev == nil {
		d.failf("%s: value %d of %s is of a newer version", field, v.Number(), e.Name())
		return ""
	}
	return D(strings.ToLower(strings.TrimPrefix(string(ev.Name()), enumPrefix(e))))
}

// each maps a list, nil for an empty one.
func each[A, B any](list []A, f func(A) B) []B {
	if len(list) == 0 {
		return nil
	}
	out := make([]B, len(list))
	for i, v := range list {
		out[i] = f(v)
	}
	return out
}
