package wire_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// kind is one mapped type: its way to bytes and back.
type kind struct {
	name   string
	fill   func(g *generator) any // a pointer to a domain value
	encode func(v any) proto.Message
	decode func(t *testing.T, b []byte) (any, error)
}

// kindOf ties a pair of mappings on values together.
func kindOf[D any, P any, M interface {
	*P
	proto.Message
}](name string, from func(D) M, to func(M) (D, error)) kind {
	return kind{
		name: name,
		fill: func(g *generator) any {
			v := new(D)
			g.fill(reflect.ValueOf(v).Elem(), name)
			return v
		},
		encode: func(v any) proto.Message { return from(*v.(*D)) },
		decode: func(t *testing.T, b []byte) (any, error) {
			t.Helper()
			m := M(new(P))
			if err := proto.Unmarshal(b, m); err != nil {
				return nil, err
			}
			v, err := to(m)
			return &v, err
		},
	}
}

func kinds() []kind {
	return []kind{
		kindOf("Render", wire.FromRender, wire.ToRender),
		kindOf("Asset", wire.FromAsset, wire.ToAsset),
		kindOf("Result", wire.FromResult, wire.ToResult),
		kindOf("Message", wire.FromMessage, wire.ToMessage),
		kindOf("History", wire.FromHistory, wire.ToHistory),
		kindOf("Binding", wire.FromBinding, wire.ToBinding),
		kindOf("Sample", wire.FromSample, wire.ToSample),
		kindOf("Worker", wire.FromWorker, wire.ToWorker),
		kindOf("Timer", wire.FromTimer, wire.ToTimer),
		kindOf("Usage", wire.FromUsage, wire.ToUsage),
		kindOf("DeadLetter", wire.FromDeadLetter, wire.ToDeadLetter),
	}
}

// constants collects the string constants of package render by type.
func constants(tb testing.TB) map[string][]string {
	tb.Helper()
	files, err := filepath.Glob("../render/*.go")
	if err != nil {
		tb.Fatal(err)
	}
	all := map[string][]string{}
	collect := func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		typ, isType := spec.Type.(*ast.Ident)
		lit, isLit := spec.Values[0].(*ast.BasicLit)
		if isType && isLit && lit.Kind == token.STRING {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				tb.Fatal(err)
			}
			all[typ.Name] = append(all[typ.Name], s)
		}
		return true
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			tb.Fatal(err)
		}
		ast.Inspect(f, collect)
	}
	return all
}

// generator makes domain values. With full set every field of every struct is
// other than its zero value.
type generator struct {
	*rand.Rand
	full  bool
	enums map[string][]string
}

// fill sets v, which stands at the path.
func (g *generator) fill(v reflect.Value, path string) {
	if path == "Binding.Revision" { // the store's, not stored
		return
	}
	switch v.Interface().(type) {
	case time.Time:
		if g.full || g.IntN(4) > 0 {
			v.Set(reflect.ValueOf(time.Unix(g.Int64N(4e9), g.Int64N(1e9)).UTC()))
		}
		return
	case render.Code:
		v.SetString(g.text())
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			switch v.Type().Name() + "." + name {
			case "Facts.Video", "Facts.Audio":
				v.Field(i).SetInt(int64(g.IntN(4)) - int64(g.unless(1)))
			case "Segment.Seek":
				v.Field(i).SetFloat([]float64{g.Float64() * 1e4, -1}[g.unless(g.IntN(2))])
			default:
				g.fill(v.Field(i), path+"."+name)
			}
		}
	case reflect.Pointer:
		if g.full || g.IntN(3) > 0 || path == "Render" || path == "Asset" || path == "Result" {
			v.Set(reflect.New(v.Type().Elem()))
			g.fill(v.Elem(), path)
		}
	case reflect.Slice:
		if n := g.IntN(3) + 1 - g.unless(1); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				g.fill(v.Index(i), path+"[]")
			}
		}
	case reflect.String:
		if values, ok := g.enums[v.Type().Name()]; ok {
			v.SetString(values[g.IntN(len(values))])
			return
		}
		v.SetString(g.text())
	case reflect.Bool:
		v.SetBool(g.full || g.IntN(2) == 0)
	case reflect.Int:
		v.SetInt(int64(g.Int32()) + int64(1-g.unless(1)))
	case reflect.Int64:
		v.SetInt(g.Int64())
	case reflect.Uint8:
		v.SetUint(uint64(g.IntN(256)))
	case reflect.Uint32:
		v.SetUint(uint64(g.Uint32()))
	case reflect.Float64:
		v.SetFloat(g.NormFloat64())
	default:
		panic(fmt.Sprintf("no rule for %s at %s", v.Type(), path))
	}
}

// unless is n, or 0 for full values.
func (g *generator) unless(n int) int {
	if g.full {
		return 0
	}
	return n
}

func (g *generator) text() string {
	words := []string{"x", "片子", "a_b/c", "\x00\n", "🎬 .*>"}
	return words[g.IntN(len(words))] + strconv.Itoa(g.IntN(1000))
}

func roundTrip(t *testing.T, k kind, v any) {
	t.Helper()
	b, err := wire.Marshal(k.encode(v))
	if err != nil {
		t.Fatalf("%s: marshal: %v", k.name, err)
	}
	got, err := k.decode(t, b)
	if err != nil {
		t.Fatalf("%s: decode: %v", k.name, err)
	}
	if !reflect.DeepEqual(got, v) {
		t.Errorf("%s changed on the way:\n was %+v\n is  %+v", k.name, v, got)
	}
}

// A field that the mapping forgets is lost from a value that has them all, and
// a protobuf field that nothing sets is found in what such a value becomes.
func TestEveryFieldIsMapped(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			g := &generator{Rand: rand.New(rand.NewPCG(1, 2)), full: true, enums: constants(t)}
			v := k.fill(g)
			requireFull(t, reflect.ValueOf(v), k.name)
			roundTrip(t, k, v)
			requireSet(t, k.encode(v).ProtoReflect(), k.name)
		})
	}
}

// requireFull guards the test itself: a full value has no zero field.
func requireFull(t *testing.T, v reflect.Value, path string) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer:
		requireFull(t, v.Elem(), path)
	case reflect.Slice:
		if v.Len() == 0 {
			t.Errorf("%s is empty", path)
		}
		for i := range v.Len() {
			requireFull(t, v.Index(i), path+"[]")
		}
	case reflect.Struct:
		if _, ok := reflect.TypeAssert[time.Time](v); ok {
			return
		}
		for i := range v.NumField() {
			requireFull(t, v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	default:
		if v.IsZero() && path != "Binding.Revision" && !strings.HasSuffix(path, "Facts.Video") &&
			!strings.HasSuffix(path, "Facts.Audio") && v.Kind() != reflect.Uint8 {
			t.Errorf("%s is zero", path)
		}
	}
}

func requireSet(t *testing.T, m protoreflect.Message, path string) {
	t.Helper()
	switch m.Interface().(type) {
	case *timestamppb.Timestamp, *durationpb.Duration:
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		at := path + "." + string(fd.Name())
		switch {
		case !m.Has(fd):
			t.Errorf("%s is set by no mapping", at)
		case fd.IsList() && fd.Message() != nil:
			for i := range m.Get(fd).List().Len() {
				requireSet(t, m.Get(fd).List().Get(i).Message(), at)
			}
		case fd.Message() != nil:
			requireSet(t, m.Get(fd).Message(), at)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	enums := constants(f)
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := &generator{Rand: rand.New(rand.NewPCG(seed, 1)), enums: enums}
		for _, k := range kinds() {
			roundTrip(t, k, k.fill(g))
		}
	})
}

// Whatever bytes a store returns, decoding ends in a value that can be written
// again or in an error.
func FuzzDecode(f *testing.F) {
	g := &generator{Rand: rand.New(rand.NewPCG(3, 4)), full: true, enums: constants(f)}
	f.Add([]byte{})
	for _, k := range kinds() {
		b, err := wire.Marshal(k.encode(k.fill(g)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, k := range kinds() {
			v, err := k.decode(t, b)
			if err != nil {
				continue
			}
			again, err := wire.Marshal(k.encode(v))
			if err != nil {
				t.Fatalf("%s: marshal what was decoded: %v", k.name, err)
			}
			if _, err := k.decode(t, again); err != nil {
				t.Fatalf("%s: decode again: %v", k.name, err)
			}
		}
	})
}

// The domain's constants and the values of each enum are the same names.
func TestEnumsMatchTheDomain(t *testing.T) {
	t.Parallel()
	enums := constants(t)
	for _, file := range []protoreflect.FileDescriptor{
		vidforgev1.File_vidforge_v1_media_proto, vidforgev1.File_vidforge_v1_render_proto,
		vidforgev1.File_vidforge_v1_work_proto, vidforgev1.File_vidforge_v1_message_proto,
	} {
		for i := range file.Enums().Len() {
			e := file.Enums().Get(i)
			prefix := strings.TrimSuffix(string(e.Values().Get(0).Name()), "UNSPECIFIED")
			var want, got []string
			for _, c := range enums[string(e.Name())] {
				want = append(want, prefix+strings.ToUpper(c))
			}
			for i := 1; i < e.Values().Len(); i++ {
				got = append(got, string(e.Values().Get(i).Name()))
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("enum %s has %v, the domain %v", e.Name(), got, want)
			}
		}
	}
}

func TestDecodingRefuses(t *testing.T) {
	t.Parallel()
	id := "task_" + strings.Repeat("a", 26)
	tests := map[string]struct {
		in   proto.Message
		want string
	}{
		"a record without id":     {&vidforgev1.RenderRecord{}, "without id"},
		"an asset without id":     {&vidforgev1.Asset{}, "without id"},
		"a worker without id":     {&vidforgev1.Worker{}, "without id"},
		"a timer without task":    {&vidforgev1.Timer{Name: "x"}, "without task"},
		"a binding without task":  {&vidforgev1.Binding{SpecHash: "x"}, "without task"},
		"a state to come":         {&vidforgev1.RenderRecord{Id: id, State: 99}, "state: value 99"},
		"an outcome to come":      {&vidforgev1.AttemptHistory{Attempts: []*vidforgev1.Attempt{{Outcome: 99}}}, "outcome: value 99"},
		"a stage to come":         {&vidforgev1.StageMessage{Work: &vidforgev1.Work{Stage: 99}}, "work.stage: value 99"},
		"a stage in a letter":     {&vidforgev1.DeadLetter{Work: &vidforgev1.Work{Stage: 99}}, "work.stage: value 99"},
		"a stage in a sample":     {&vidforgev1.ProgressSample{Work: &vidforgev1.Work{Stage: 99}}, "work.stage: value 99"},
		"a class to come":         {&vidforgev1.Worker{Id: "w", Classes: []vidforgev1.Class{99}}, "classes: value 99"},
		"a time that is none":     {&vidforgev1.Timer{TaskId: id, DueTime: &timestamppb.Timestamp{Nanos: -1}}, "due_time"},
		"a duration that is none": {&vidforgev1.StageResult{Elapsed: &durationpb.Duration{Seconds: 1, Nanos: -1}}, "elapsed"},
		"an asset's broken time":  {&vidforgev1.Asset{Id: "a", CreateTime: &timestamppb.Timestamp{Nanos: -1}}, "create_time"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var err error
			switch m := tt.in.(type) {
			case *vidforgev1.RenderRecord:
				_, err = wire.ToRender(m)
			case *vidforgev1.Asset:
				_, err = wire.ToAsset(m)
			case *vidforgev1.Worker:
				_, err = wire.ToWorker(m)
			case *vidforgev1.Timer:
				_, err = wire.ToTimer(m)
			case *vidforgev1.Binding:
				_, err = wire.ToBinding(m)
			case *vidforgev1.AttemptHistory:
				_, err = wire.ToHistory(m)
			case *vidforgev1.StageMessage:
				_, err = wire.ToMessage(m)
			case *vidforgev1.DeadLetter:
				_, err = wire.ToDeadLetter(m)
			case *vidforgev1.ProgressSample:
				_, err = wire.ToSample(m)
			case *vidforgev1.StageResult:
				_, err = wire.ToResult(m)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// An older version reads, changes and writes what a newer one made.
func TestCarryUnknown(t *testing.T) {
	t.Parallel()
	newer := func(n protowire.Number) protoreflect.RawFields {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), 7)
	}
	g := &generator{Rand: rand.New(rand.NewPCG(5, 6)), full: true, enums: constants(t)}
	rec := new(render.Record)
	g.fill(reflect.ValueOf(rec).Elem(), "Render")
	stored := wire.FromRender(rec)
	stored.ProtoReflect().SetUnknown(newer(900))
	stored.GetSpec().ProtoReflect().SetUnknown(newer(901))
	stored.GetSpec().GetWatermark().ProtoReflect().SetUnknown(newer(902))
	stored.GetPreview().ProtoReflect().SetUnknown(newer(903))
	b, err := wire.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}

	read := new(vidforgev1.RenderRecord)
	if err := proto.Unmarshal(b, read); err != nil {
		t.Fatal(err)
	}
	next, err := wire.ToRender(read)
	if err != nil {
		t.Fatal(err)
	}
	next.CancelledBy, next.Preview = "somebody", nil
	written := wire.FromRender(next)
	wire.CarryUnknown(written, read)

	if written.GetPreview() != nil {
		t.Error("a message that was taken away came back")
	}
	if written.GetCancelledBy() != "somebody" {
		t.Error("a known field was not written")
	}
	for name, c := range map[string]struct {
		m proto.Message
		n protowire.Number
	}{
		"record":    {written, 900},
		"spec":      {written.GetSpec(), 901},
		"watermark": {written.GetSpec().GetWatermark(), 902},
	} {
		if got := c.m.ProtoReflect().GetUnknown(); string(got) != string(newer(c.n)) {
			t.Errorf("%s has unknown fields %x, want %x", name, got, newer(c.n))
		}
	}
}

func TestMarshalRepairsText(t *testing.T) {
	t.Parallel()
	r := render.StageResult{
		Attempt: "a\xffb",
		Facts:   &render.Facts{Container: "mov\xfe", Streams: []render.Stream{{Codec: "h264"}, {Codec: "\xc3"}}},
		LogTail: []string{"fine", "caf\xe9"},
	}
	b, err := wire.Marshal(wire.FromResult(&r))
	if err != nil {
		t.Fatal(err)
	}
	var m vidforgev1.StageResult
	if err := proto.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	got := []string{m.GetAttemptId(), m.GetFacts().GetContainer(), m.GetFacts().GetStreams()[1].GetCodec(), m.GetLogTail()[0], m.GetLogTail()[1]}
	want := []string{"a\uFFFDb", "mov\uFFFD", "\uFFFD", "fine", "caf\uFFFD"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if r.LogTail[1] != "caf\xe9" {
		t.Error("the caller's value was changed")
	}
}
