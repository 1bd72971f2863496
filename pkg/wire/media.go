package wire

import (
	"errors"

	"github.com/vidforge/vidforge/pkg/render"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// FromAsset maps an asset.
func FromAsset(a *render.Asset) *vidforgev1.Asset {
	return &vidforgev1.Asset{
		Id:         string(a.ID),
		Tenant:     string(a.Tenant),
		Name:       a.Name,
		MimeType:   a.MIMEType,
		State:      fromEnum[vidforgev1.AssetState](a.State),
		Object:     fromObject(a.Object),
		CreateTime: fromTime(a.Created),
		ExpireTime: fromTime(a.Expires),
		Facts:      fromFacts(a.Facts),
	}
}

// ToAsset is the reverse of FromAsset.
func ToAsset(p *vidforgev1.Asset) (*render.Asset, error) {
	if p.GetId() == "" {
		return nil, errors.New("wire: asset without id")
	}
	var d decoder
	a := &render.Asset{
		ID:       render.AssetID(p.GetId()),
		Tenant:   render.Tenant(p.GetTenant()),
		Name:     p.GetName(),
		MIMEType: p.GetMimeType(),
		State:    toEnum[render.AssetState](&d, "state", p.GetState()),
		Object:   toObject(p.GetObject()),
		Created:  d.time("create_time", p.GetCreateTime()),
		Expires:  d.time("expire_time", p.GetExpireTime()),
		Facts:    d.facts(p.GetFacts()),
	}
	if d.err != nil {
		return nil, d.err
	}
	return a, nil
}

func fromRational(r render.Rational) *vidforgev1.Rational {
	if r == (render.Rational{}) {
		return nil
	}
	return &vidforgev1.Rational{Num: r.Num, Den: r.Den}
}

func toRational(p *vidforgev1.Rational) render.Rational {
	return render.Rational{Num: p.GetNum(), Den: p.GetDen()}
}

func fromObject(o render.Object) *vidforgev1.Object {
	if o == (render.Object{}) {
		return nil
	}
	return &vidforgev1.Object{Key: o.Key, Etag: o.ETag, Size: o.Size, Sha256: o.SHA256}
}

func toObject(p *vidforgev1.Object) render.Object {
	return render.Object{Key: p.GetKey(), ETag: p.GetEtag(), Size: p.GetSize(), SHA256: p.GetSha256()}
}

func fromSourceRef(s *render.SourceRef) *vidforgev1.SourceRef {
	if s == nil {
		return nil
	}
	return &vidforgev1.SourceRef{
		AssetId:  string(s.Asset),
		Name:     s.Name,
		MimeType: s.MIMEType,
		Object:   fromObject(s.Object),
		Facts:    fromFacts(s.Facts),
	}
}

func (d *decoder) sourceRef(p *vidforgev1.SourceRef) *render.SourceRef {
	if p == nil {
		return nil
	}
	return &render.SourceRef{
		Asset:    render.AssetID(p.GetAssetId()),
		Name:     p.GetName(),
		MIMEType: p.GetMimeType(),
		Object:   toObject(p.GetObject()),
		Facts:    d.facts(p.GetFacts()),
	}
}

func fromStream(s render.Stream) *vidforgev1.Stream {
	return &vidforgev1.Stream{
		Index:             fromInt(s.Index),
		Kind:              s.Kind,
		Codec:             s.Codec,
		TimeBase:          fromRational(s.TimeBase),
		Default:           s.Default,
		AttachedPicture:   s.AttachedPicture,
		Width:             fromInt(s.Width),
		Height:            fromInt(s.Height),
		PixelAspect:       fromRational(s.PixelAspect),
		FrameRate:         fromRational(s.FrameRate),
		VariableFrameRate: s.VariableFrameRate,
		Rotation:          fromInt(s.Rotation),
		PixelFormat:       s.PixelFormat,
		BitDepth:          fromInt(s.BitDepth),
		Hdr:               s.HDR,
		ColorRange:        s.ColorRange,
		ColorSpace:        s.ColorSpace,
		ColorTransfer:     s.ColorTransfer,
		ColorPrimaries:    s.ColorPrimaries,
		Interlaced:        s.Interlaced,
		Channels:          fromInt(s.Channels),
		SampleRate:        fromInt(s.SampleRate),
	}
}

func toStream(p *vidforgev1.Stream) render.Stream {
	return render.Stream{
		Index:             int(p.GetIndex()),
		Kind:              p.GetKind(),
		Codec:             p.GetCodec(),
		TimeBase:          toRational(p.GetTimeBase()),
		Default:           p.GetDefault(),
		AttachedPicture:   p.GetAttachedPicture(),
		Width:             int(p.GetWidth()),
		Height:            int(p.GetHeight()),
		PixelAspect:       toRational(p.GetPixelAspect()),
		FrameRate:         toRational(p.GetFrameRate()),
		VariableFrameRate: p.GetVariableFrameRate(),
		Rotation:          int(p.GetRotation()),
		PixelFormat:       p.GetPixelFormat(),
		BitDepth:          int(p.GetBitDepth()),
		HDR:               p.GetHdr(),
		ColorRange:        p.GetColorRange(),
		ColorSpace:        p.GetColorSpace(),
		ColorTransfer:     p.GetColorTransfer(),
		ColorPrimaries:    p.GetColorPrimaries(),
		Interlaced:        p.GetInterlaced(),
		Channels:          int(p.GetChannels()),
		SampleRate:        int(p.GetSampleRate()),
	}
}

func fromFacts(f *render.Facts) *vidforgev1.Facts {
	if f == nil {
		return nil
	}
	return &vidforgev1.Facts{
		Kind:        f.Kind,
		Container:   f.Container,
		Duration:    fromDuration(f.Duration),
		Streams:     each(f.Streams, fromStream),
		Renderable:  f.Renderable,
		Reason:      f.Reason,
		Code:        string(f.Code),
		VideoStream: fromPosition(f.Video),
		AudioStream: fromPosition(f.Audio),
		GridRate:    fromRational(f.GridRate),
		GridFrames:  f.GridFrames,
		StartTicks:  f.StartTicks,
		Start:       fromRational(f.Start),
		WholeOnly:   f.WholeOnly,
		Width:       fromInt(f.Width),
		Height:      fromInt(f.Height),
	}
}

func (d *decoder) facts(p *vidforgev1.Facts) *render.Facts {
	if p == nil {
		return nil
	}
	return &render.Facts{
		Kind:       p.GetKind(),
		Container:  p.GetContainer(),
		Duration:   d.duration("facts.duration", p.GetDuration()),
		Streams:    each(p.GetStreams(), toStream),
		Renderable: p.GetRenderable(),
		Reason:     p.GetReason(),
		Code:       render.Code(p.GetCode()),
		Video:      toPosition(p.VideoStream),
		Audio:      toPosition(p.AudioStream),
		GridRate:   toRational(p.GetGridRate()),
		GridFrames: p.GetGridFrames(),
		StartTicks: p.GetStartTicks(),
		Start:      toRational(p.GetStart()),
		WholeOnly:  p.GetWholeOnly(),
		Width:      int(p.GetWidth()),
		Height:     int(p.GetHeight()),
	}
}

// fromPosition makes the domain's -1 absent.
func fromPosition(n int) *int32 {
	if n < 0 {
		return nil
	}
	v := fromInt(n)
	return &v
}

func toPosition(p *int32) int {
	if p == nil {
		return -1
	}
	return int(*p)
}
